"""The evidence behind a statement: its seeds, how its subject was selected, and what it was tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sweeplab.formatting import several

DIFFERENT: Final = "different"
NOT_SEEN: Final = "no difference seen"
UNKNOWN: Final = "undecided"
# Why a difference cannot be told from chance, and how to find out.
ONE_SEED = "no cell has two seeds; to find out, use `seeds: [0, 1, 2]` or `confirm`"
ONE_TRIAL = "each cell has one trial of its search; to find out, use `trials_per_cell` or `confirm`"


@dataclass(frozen=True)
class Evidence:
    """The evidence for a statement about a difference, a winner, a depth or a width.

    `n_seeds` is the smallest number of seeds of the compared configurations (0 if unknown). `selection` says how these
    were chosen. `tested_on` names the seeds and the split of the losses that decide; if no losses decide, it is empty
    and `why` gives the reason.
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
        """Return a clause with the evidence and the verdict, and with the reason if nothing was tested."""
        if self.tested_on:
            return f"{self.basis}: {self.verdict}"
        return f"{self.verdict}: {self.basis}; {self.why}"


def best_of(n_trials: int, what: str = "each cell", fewest: int | None = None) -> str:
    """Say from how many trials a trial was chosen: `n_trials`, or `fewest` to `n_trials` if cells differ."""
    many = f"{fewest} to {n_trials}" if fewest is not None and fewest < n_trials else str(n_trials)
    if n_trials > 1:
        return f"the best of {many} trials of {what}"
    return f"the only trial of {what}"
