"""What a running study tells a program that listens: plain records, in the process that runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("sweeplab")


@dataclass(frozen=True)
class Evaluation:
    """One run's validation loss, in nats a token, at an iteration; not finite where the run diverges."""

    study: str
    cell: str
    trial: int
    seed: int
    iteration: int
    val_loss: float


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended: `outcome` is complete, stopped, pruned, diverged or failed; `states` are its seeds'.

    `value` is None where there was no finite loss, `error` a traceback where it failed.
    """

    study: str
    cell: str
    trial: int
    outcome: str
    value: float | None
    states: Mapping[int, str]
    error: str | None


OnEvaluation = Callable[[Evaluation], object]
OnTrialEnd = Callable[[TrialEnd], object]


class Callbacks:
    """Calls a program's functions with what happens, and survives what they raise: `errors` says it in the end."""

    def __init__(
        self, study: str, on_evaluation: OnEvaluation | None, on_trial_end: OnTrialEnd | None
    ) -> None:
        self._study = study
        self._on_evaluation, self._on_trial_end = on_evaluation, on_trial_end
        self._raised: dict[str, tuple[str, int]] = {}

    @property
    def errors(self) -> list[str]:
        """Return what each function raised first, and how often it raised."""
        return [f"{name} raised {said}, {times} times in all" for name, (said, times) in self._raised.items()]

    def hear(self, event: Mapping[str, Any]) -> None:
        """Tell of an event of a worker's, if it is one of those that are listened to."""
        if event["event"] == "evaluated" and self._on_evaluation:
            seed = int(event["run"].rpartition("/")[2])
            what = event["iteration"], event["val_loss"]
            record = Evaluation(self._study, event["cell"], event["trial"], seed, *what)
            self._call("on_evaluation", self._on_evaluation, record)
        elif event["event"] == "ended" and self._on_trial_end:
            states = {int(seed): state for seed, state in event["states"].items()}
            how = event["outcome"], event["value"], states, event["error"]
            end = TrialEnd(self._study, event["cell"], event["trial"], *how)
            self._call("on_trial_end", self._on_trial_end, end)

    def _call(self, name: str, function: Callable[[Any], object], record: Any) -> None:
        try:
            function(record)
        except Exception as error:
            said, times = self._raised.get(name, (f"{type(error).__name__}: {error}", 0))
            self._raised[name] = said, times + 1
            if not times:  # the others are counted
                _log.error("%s raised %s; the study goes on", name, said, exc_info=error)
