"""A table's columns: which one has which role, in which unit, the numbers in its cells, and how they count.

The unit of a count is the first of these that is given:
  COLUMN*1e9   a factor from the user, also COLUMN*1: 1 confirms the numbers, so that no check asks
  the cell's   1.3B is 1.3e9 in any column
  the name's   a unit as the last word: params_M, "tokens (B)", D_tokens_billions, train_PFLOPs

Exponents depend on what counts as N, C and the loss: each choice (`Conventions`) is recorded with the points.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.expressions import ALLOWED, Expression
from sweeplab.hyperparameters import TABLE

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# The choices with their meaning; the first is the default. `rows` is for files: a study's point is its best trial.
CHOICES: dict[str, dict[str, str]] = {
    "params": {
        "total": "all parameters, tied ones once",
        "active": "parameters active for a token: all but the experts it is not routed to",
        "non-embedding": "parameters without the embeddings and without a head tied to them",
    },
    "loss": {"nats": "nats per token", "bits-per-byte": "bits per byte"},
    "at": {"best": "the lowest evaluation of a run", "final": "the last evaluation of a run"},
    "rows": {
        "best": "the best row of each point",
        "mean": "the mean of its rows",
        "all": "every row",
    },
}


@dataclass(frozen=True)
class Conventions:
    """One choice of each of CHOICES; empty means the default."""

    params: str = ""
    loss: str = ""
    at: str = ""
    rows: str = ""

    def chosen(self, name: str) -> str:
        """Return a choice, or its default."""
        return str(getattr(self, name)) or next(iter(CHOICES[name]))


@dataclass(frozen=True)
class Counting:
    """How a table is counted: its conventions, the columns named by the user, and the filter of rows.

    `tuned` is how its points were tuned, one of TUNED, if the user says so.
    """

    conventions: Conventions = field(default_factory=Conventions)
    columns: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    tuned: str = ""

    @property
    def roles(self) -> dict[str, str]:
        """Return the columns that are named for roles, without those of hyperparameters."""
        return {role: column for role, column in self.columns.items() if role in ROLES}


PLAIN = Counting()


COUNTS = ("params", "tokens", "flops")
SHAPE = ("n_layer", "n_embd")
ROLES = (*COUNTS, "loss", *SHAPE)
# Other names of a role's column, the most certain first; single letters are capitals: d is a width and l a depth.
OTHER_NAMES = {
    "params": "N n_params num_params n_parameters num_parameters parameters model_params total_params model_size",
    "tokens": "D train_tokens n_tokens num_tokens training_tokens total_tokens tokens_seen dataset_size",
    "flops": "C train_flops n_flops training_flops total_flops flop training_flop train_flop compute training_compute",
    "loss": "L val_loss valid_loss validation_loss best_val_loss final_val_loss eval_loss test_loss final_loss",
    "n_layer": "n_layers num_layers num_hidden_layers layers depth",
    "n_embd": "d_model n_embed embed_dim hidden_size model_width width",
}
_UNENDED = ("pruned", "diverged", "failed", "running", "waiting")
# Other names of values that are usually searched, in small letters; `batch` is that of published tables. Of two values
# that follow each other the first in this order is fitted.
SEARCHED_NAMES = {
    "learning_rate": "lr peak_lr max_lr base_lr eta",
    "batch_size": "bs batch global_batch_size gbs batch_tokens batch_size_tokens",
    "weight_decay": "wd lambda decay",
}
# Columns with how often a run read its text.
_PASSES = ("epochs", "n_epochs", "num_epochs", "passes")
LETTERS = {
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "B": 1e9,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Z": 1e21,
}
# P, E and Z are of FLOPs alone: N_E is no unit.
_SIZES = {"m": 1e6, "b": 1e9} | {
    letter: size for letter, size in LETTERS.items() if letter not in "PEZ"
}
_SIZES |= {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_FLOPS = LETTERS | {f"{letter.lower()}flop": size for letter, size in LETTERS.items()}
# The last word of a name, after a space, a sign or a bracket.
_LAST = re.compile(r"(?P<stem>.*[^\s_.(\[-])[\s_.(\[-]+(?P<unit>[A-Za-z]+?|1e\d+)s?[)\]]?\s*")
_CELL = re.compile(
    rf"([-+]?(?:\d{{1,3}}(?:,\d{{3}})+|\d*)(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s*([{''.join(LETTERS)}]))?"
)
_LONGEST_SHOWN = 60  # characters of a cell
_NO_NUMBER = "not a number, such as 0.31, 4e6 or 1.3B"
# A cell without a number, and a run that gave none, as people write it.
_NOTHING = "- ? nan none null na n/a inf -inf +inf tbd diverged diverge oom failed fail crashed killed timeout error"


@dataclass(frozen=True)
class Column:
    """A role's numbers, [n], NaN if missing; `words` describe it; a `factor` of 1 is how a user confirms it.

    `says_unit` is whether a factor or the column's name says in which unit the numbers are.
    """

    name: str
    words: str
    values: Array
    factor: float | None
    says_unit: bool = True


def pairs_of(
    option: str, text: str, known: Collection[str], others: Collection[str] = ()
) -> dict[str, str]:
    """Return {"params": "N", …} of "params=N,tokens=D*1e9,…", the text of an option, whose names are `known` or others.

    An empty text has no pairs.

    Raises:
        BadInput: a part that is not a pair, an unknown name, a name that is there twice.
    """
    chosen = {}
    problems = []
    for pair in text.split(",") if text else ():
        name, _, value = map(str.strip, pair.partition("="))
        if name not in known and name not in others:
            like = nearest(name, {*known, *others})
            problems.append(Problem(f"{option} has no {name!r}", ", ".join(known), like))
        elif not value:
            problems.append(Problem(f"{option} {pair.strip()!r} is not NAME=VALUE"))
        elif name in chosen:
            problems.append(Problem(f"{option} names {name!r} twice"))
        chosen[name] = value
    if problems:
        raise BadInput(*problems)
    return chosen


def parse_conventions(text: str) -> Conventions:
    """Return the conventions of "params=non-embedding,rows=mean,…".

    Raises:
        BadInput: an unknown convention or choice, or a convention named twice.
    """
    chosen = pairs_of("--count", text, CHOICES)
    for name, choice in chosen.items():
        choices = CHOICES[name]
        if choice not in choices:
            raise BadInput(
                Problem(
                    f"--count {name}={choice}", ", ".join(choices), nearest(choice, choices)
                )
            )
    return Conventions(**chosen)


def role_columns(
    known: Sequence[str], asked: Mapping[str, str], source: str, taken: Collection[str] = ()
) -> dict[str, str]:
    """Return the column of each role: the one asked for, else one that is named like the role and is not taken.

    Raises:
        BadInput: no column is the loss.
    """
    columns = dict(asked)
    named = {named_column(name, known)[0] for name in asked.values()}
    free = [name for name in known if name not in named and name not in taken]
    for role, others in OTHER_NAMES.items():
        called = {_called(_unit(name, role)[0]): name for name in reversed(free)}
        if role in free:
            called[role] = role
        for name in (role, *others.split()):
            if name in called:
                columns.setdefault(role, called[name])
    if "loss" not in columns:
        what = f"{source}: which column is the loss? name it with --columns loss=COLUMN"
        raise BadInput(Problem(what, ", ".join(known), nearest("loss", known)))
    return columns


def setting_columns(known: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return the column of each hyperparameter that one is named like, those that are usually searched first."""
    columns: dict[str, str] = {}
    for name in (*SEARCHED_NAMES, *TABLE):
        others = SEARCHED_NAMES.get(name, "").split()
        for column in known:
            if column not in taken and (column == name or column.lower() in others):
                columns.setdefault(name, column)
    return columns


def tells_passes(name: str) -> bool:
    """Return whether a column, by its name, says how often a run read its text."""
    return _called(name) in _PASSES


def _called(name: str) -> str:
    """A name as OTHER_NAMES has it: `val/loss`, `Val Loss` and W&B's `summary/val_loss` are val_loss."""
    words = re.sub(r"[\s.\-/]+", "_", re.sub(r"^(summary|config)[/.]_?", "", name.strip()))
    return words if len(words) == 1 else words.lower()


def read_columns(
    frame: pd.DataFrame, columns: Mapping[str, str], source: str
) -> dict[str, Column]:
    """Return the numbers of each role; tokens that no column has are C/6N, and FLOPs 6ND, where it has both others.

    Raises:
        BadInput: every column that is missing, has two roles, or has a cell that is not a positive number.
    """
    known = [str(name) for name in frame]
    problems = []
    read: dict[str, Column] = {}
    for role, asked in columns.items():
        name, factor, wrong = named_column(asked, known)
        others = [other for other in read if read[other].name == name]
        if wrong:
            problems.append(
                Problem(f"{source}: {wrong}", ", ".join(known), nearest(name, known))
            )
            continue
        if others:
            problems.append(
                Problem(f"{source}: column {name!r} is both {others[0]} and {role}")
            )
            continue
        unit = 1.0
        words = f"column {asked}"
        if not factor:
            unit = _unit(name, role)[1]
        if unit != 1:
            words = f"column {name}, times {unit:g}"
        values, bad = numbers_of(frame[name], unit)
        what = _NO_NUMBER
        if not bad.any():
            bad = values <= 0
            what = "not positive"
        if bad.any():
            wrong = fault(frame[name], bad, what)
            problems.append(Problem(f"{source}: column {name!r} ({role}): {wrong}"))
        says_unit = bool(factor) or unit != 1
        read[role] = Column(name, words, values * (factor or 1.0), factor, says_unit)
    if problems:
        raise BadInput(*problems)
    if "tokens" not in columns and {"params", "flops"} <= read.keys():
        values = read["flops"].values / (6 * read["params"].values)
        read["tokens"] = Column("C/6N", "C/6N", values, 1.0)
    elif "flops" not in columns and {"params", "tokens"} <= read.keys():
        values = 6 * read["params"].values * read["tokens"].values
        read["flops"] = Column("6ND", "6ND", values, 1.0)
    return read


def named_column(asked: str, known: Sequence[str]) -> tuple[str, float | None, str]:
    """Return a column's name, its factor if one is given, and an error text, or an empty one."""
    name, star, text = asked.rpartition("*")
    if asked in known or not star:
        return asked, None, "" if asked in known else f"no column {asked!r}"
    name = name.strip()
    factor = number_in(text)
    if not 0 < (factor or 0) < np.inf:
        return name, None, f"{text!r} is no factor for column {name!r}"
    return name, factor, "" if name in known else f"no column {name!r}"


def _unit(name: str, role: str) -> tuple[str, float]:
    """A column's name without its unit, and the unit: 1 if the name has none."""
    # The pattern looks at every pair of places in a name.
    if role not in COUNTS or len(name) > _LONGEST_SHOWN:
        return name, 1.0
    match = _LAST.fullmatch(name)
    if not match:
        return name, 1.0
    unit = match["unit"]
    sizes = _SIZES
    if role == "flops":
        sizes = _FLOPS
    size = sizes.get(unit) or sizes.get(unit.lower())
    if unit[0] == "1":
        size = float(unit)
    return (match["stem"], size) if size else (name, 1.0)


def numbers_of(column: pd.Series[Any], unit: float = 1.0) -> tuple[Array, NDArray[np.bool_]]:
    """Return a column's numbers, [n], NaN where there is none, and which cells hold something else, [n]."""
    texts = column.astype(str).where(column.notna(), "")
    read = {text: number_in(text, unit) for text in texts.unique()}
    values = np.array([read[text] for text in texts], float)
    return values, texts.map(lambda text: read[text] is None).to_numpy(bool)


def fault(column: pd.Series[Any], bad: NDArray[np.bool_], what: str = _NO_NUMBER) -> str:
    """Say which cells, given by a mask, are no number, or are what they must not be."""
    cells = column[bad]
    more = ""
    text = str(cells.iloc[0])
    at = cells.index[0]
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}…"
    if len(cells) > 1:
        more = f" and {len(cells) - 1} more"
    return f"{text!r} in {column.index.name or 'row'} {at}{more} is {what}"


def number_in(text: str, unit: float = 1.0) -> float | None:
    """Return the number in a cell: 1.3B is 1.3e9, an empty cell NaN, any other text None."""
    if text.strip().lower() in ("", *_NOTHING.split()):
        return np.nan
    match = _CELL.fullmatch(text.strip())
    if not match or not any(map(str.isdigit, match[1])):
        return None
    return float(match[1].replace(",", "")) * LETTERS.get(match[2], unit)


# The least and the largest number of each role that is not asked about. Of losses the smallest counts: a law may start
# far above the 13.9 nats of a uniform guess among 2^20 tokens.
PLAUSIBLE = {
    "params": (30, 1e15),
    "tokens": (300, 1e17),
    "flops": (1e5, 1e31),
    "loss": (1e-6, 20),
}
# Tokens per parameter of the middle row, usually about 20.
FEWEST_PER_PARAM, MOST_PER_PARAM = 0.1, 1e4


def check_plausible(
    columns: Mapping[str, Column], keep: NDArray[np.bool_], source: str
) -> None:
    """Ask about numbers in the rows of `keep`, [n], that no run has, and about params and tokens that do not match."""
    asked = {
        role: column.values[keep] for role, column in columns.items() if column.factor != 1
    }
    if {"params", "tokens"} <= asked.keys():
        ratio = np.median(asked["tokens"] / asked["params"])
        if not FEWEST_PER_PARAM <= ratio <= MOST_PER_PARAM:
            raise BadInput(
                f"{source}: {ratio:.2g} tokens for each parameter, usually about 20; is one of them in another unit "
                "(tokens=COLUMN*1e9), or params and tokens swapped? If this is right, write params=COLUMN*1"
            )
    for role, values in asked.items():
        least, most = PLAUSIBLE[role]
        number = values.min()
        name = columns[role].name
        if number >= least and role != "loss":
            number = values.max()
        if columns[role].factor is None and not least <= number <= most:
            raise BadInput(
                f"{source}: column {name!r} ({role}): {number:.4g}; no run has that: is it in another unit, a "
                f"perplexity, or in percent? If this is right, write {role}={name}*1 in --columns"
            )


def ended_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows but those of runs that a column `state` says did not come to their end, as `export` writes it."""
    if "state" not in frame:
        return frame
    return frame[~frame["state"].isin(_UNENDED)]


def rows_where(frame: pd.DataFrame, where: str, source: str) -> pd.DataFrame:
    """Return the rows in which an expression holds, all if it is empty; comparisons with missing numbers are false.

    Names are columns, with underscores for characters that names cannot have, or `line` (`row` without lines).

    Raises:
        BadInput: an invalid expression, an unknown column, a row in which it has no value, or no row that matches.
    """
    if not where:
        return frame
    try:
        expression = Expression(where)
    except ValueError as error:
        raise BadInput(Problem(f"--where: {error}", ALLOWED)) from error
    word = str(frame.index.name or "row")
    columns = {word: frame.index.to_series()}
    columns |= {re.sub(r"\W+", "_", str(name)): frame[name] for name in frame}
    for name in sorted(expression.names - columns.keys()):
        what = f"--where: {source} has no column {name!r}"
        raise BadInput(Problem(what, ", ".join(columns), nearest(name, columns)))
    used = {name: columns[name].astype(object) for name in expression.names}
    cells = {
        name: column.where(column.notna(), np.nan).tolist() for name, column in used.items()
    }
    holds = []
    for row, at in enumerate(frame.index):
        try:
            holds.append(
                bool(expression.value({name: column[row] for name, column in cells.items()}))
            )
        except ValueError as error:
            raise BadInput(f"--where: {source}, {word} {at}: {error}") from error
    if not any(holds):
        raise BadInput(f"--where: {where!r} holds in no row of {source}")
    return frame[np.array(holds, bool)]
