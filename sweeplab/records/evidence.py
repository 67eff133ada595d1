"""The evidence behind a statement: its seeds, how its subject was selected, and what it was tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sweeplab.formatting import several

DIFFERENT: Final = "different"
NOT_SEEN: Final = "no difference seen"
UNKNOWN: Final = "cannot be told"
UNTESTED: Final = "not tested on other seeds"
# Why a difference cannot be told from chance, and how to find out.
ONE_SEED = "no cell has two seeds; `seeds: [0, 1, 2]` or `study confirm` would tell"
ONE_TRIAL = "each cell has one trial of its search; more `trials_per_cell` or `study confirm` would tell"
_ITS_OWN = "the loss shown is the one that chose it"


@dataclass(frozen=True)
class Evidence:
    """The evidence for a statement on a difference, a winner, a depth or a width.

    `n_seeds` is the smallest number of seeds among the compared (0 if unknown), `selection` how the subject was chosen,
    and `tested_on` the seeds and split whose losses decide. If nothing does, it is empty and `why` gives the reason.
    """

    n_seeds: int
    selection: str
    tested_on: str
    verdict: str
    why: str = ""

    @property
    def basis(self) -> str:
        """Return the evidence in words, without the verdict."""
        seeds = f", {several(self.n_seeds, 'seed')}" if self.n_seeds else ""
        tested = f", tested on {self.tested_on}" if self.tested_on else ""
        return f"{self.selection}{seeds}{tested}"

    def in_words(self) -> str:
        """Return a clause with the evidence and the verdict, and the reason if there is no verdict."""
        return (
            f"{self.basis}: {self.verdict}" if self.tested_on else f"{self.verdict}: {self.basis}; {self.why}"
        )


def best_of(n_trials: int, what: str = "each cell", fewest: int | None = None) -> str:
    """Return how a trial was chosen, among `n_trials`; with `fewest`, among that many up to `n_trials`."""
    many = f"{fewest} to {n_trials}" if fewest is not None and fewest < n_trials else str(n_trials)
    return f"the best of {many} trials of {what}" if n_trials > 1 else f"the one trial of {what}"


def chosen_best(n_seeds: int, n_trials: int, what: str = "the study") -> Evidence:
    """Return the evidence for the best trial of a study or a cell: only the losses that selected it."""
    return Evidence(n_seeds, best_of(n_trials, what), "", UNTESTED, _ITS_OWN)
