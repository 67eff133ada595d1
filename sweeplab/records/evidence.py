"""What a statement rests on: seeds, how what it speaks of was chosen, and what it was tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sweeplab.formatting import several

DIFFERENT: Final = "different"
NOT_SEEN: Final = "no difference seen"
UNKNOWN: Final = "cannot be told"
UNTESTED: Final = "not tested on other seeds"
# Why a difference cannot be told from chance, and what would tell.
ONE_SEED = "no cell has two seeds; `seeds: [0, 1, 2]` or `study confirm` would tell"
ONE_TRIAL = "each cell has one trial of its search; more `trials_per_cell` or `study confirm` would tell"
_ITS_OWN = "the loss shown is the one that chose it"


@dataclass(frozen=True)
class Evidence:
    """What a statement on a difference, a winner, a depth or a width rests on.

    `n_seeds` are the fewest of what is compared, 0 where nobody knows, `selection` how it was chosen, `tested_on` the
    seeds and the split whose losses tell; empty where nothing does, and then `why` says the reason.
    """

    n_seeds: int
    selection: str
    tested_on: str
    verdict: str
    why: str = ""

    @property
    def basis(self) -> str:
        """Say what it is, without the verdict."""
        seeds = f", {several(self.n_seeds, 'seed')}" if self.n_seeds else ""
        tested = f", tested on {self.tested_on}" if self.tested_on else ""
        return f"{self.selection}{seeds}{tested}"

    def in_words(self) -> str:
        """Say it in a clause: what it is, the verdict, and why there is none."""
        return (
            f"{self.basis}: {self.verdict}" if self.tested_on else f"{self.verdict}: {self.basis}; {self.why}"
        )


def best_of(n_trials: int, what: str = "each cell", fewest: int | None = None) -> str:
    """Say how a trial was chosen among so many; elsewhere among the `fewest`."""
    many = f"{fewest} to {n_trials}" if fewest is not None and fewest < n_trials else str(n_trials)
    return f"the best of {many} trials of {what}" if n_trials > 1 else f"the one trial of {what}"


def chosen_best(n_seeds: int, n_trials: int, what: str = "the study") -> Evidence:
    """Return what the best trial of a study, or of a cell, rests on: the losses that chose it, and no others."""
    return Evidence(n_seeds, best_of(n_trials, what), "", UNTESTED, _ITS_OWN)
