"""How a weight's start and its learning rate follow the width: `standard`, and muP.

Yang, Hu et al., "Tensor programs V: tuning large neural networks via zero-shot hyperparameter transfer" (2022),
table 8, the form in which input and output embeddings can be tied. With r = n_embd / mup_base_width:

| weight | initial standard deviation | Adam's learning rate | multiplier |
|---|---|---|---|
| input: embeddings, relative biases | 1 | 1 | 1 |
| vector: gains and biases | 1 | 1 | 1 |
| hidden: between widths that grow | r^-1/2 | 1/r | 1 |
| output: the head, tied or not | 1 | 1 | 1/r on the logits |
| router: from the width to the experts | 1/r | 1/r | 1 |

and attention's scores are divided by head_dim instead of its root. Where r is 1 all but that is `standard`.

Departures: the constants beside the powers of r are GPT-2's (0.02, and less for projections back into the residual
stream), not tuned ones; a router, which the paper has not, takes the equal form of table 3, for it has no multiplier;
queries and the head start as the rest does, not at zero; decoupled weight decay goes by the unscaled learning rate,
so that a step shrinks every matrix alike at any width, as the authors' mup package does it; eps is not scaled;
every hidden width (d_ff, heads) is taken to grow as n_embd does.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Literal

Kind = Literal["input", "hidden", "output", "router", "vector"]

# The first pattern that a matrix's name meets says its kind; hidden where none does.
_KINDS: tuple[tuple[str, Kind], ...] = (
    ("*_embedding", "input"),
    ("*relative_bias", "input"),
    ("*router.weight", "router"),
    ("head.weight", "output"),
)
# Powers of the width ratio: of the initial standard deviation and of the learning rate.
_POWERS: dict[Kind, tuple[float, float]] = {
    "input": (0.0, 0.0),
    "hidden": (-0.5, -1.0),
    "output": (0.0, 0.0),
    "router": (-1.0, -1.0),
    "vector": (0.0, 0.0),
}


def kind(name: str, n_dims: int) -> Kind:
    """Return what a weight of this name and number of dimensions is between: fixed sizes, widths, or neither."""
    if n_dims == 1:
        return "vector"
    return next((found for pattern, found in _KINDS if fnmatch(name, pattern)), "hidden")


def std_factor(name: str, n_dims: int, width_ratio: float) -> float:
    """Return what a weight's initial standard deviation is multiplied by; 1 where the width ratio is."""
    return float(width_ratio ** _POWERS[kind(name, n_dims)][0])


def learning_rate_factor(name: str, n_dims: int, width_ratio: float) -> float:
    """Return what a weight's learning rate is multiplied by; 1 where the width ratio is."""
    return float(width_ratio ** _POWERS[kind(name, n_dims)][1])
