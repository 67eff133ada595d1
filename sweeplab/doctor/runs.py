"""The folders of runs: what a kill, a full disk or a hand left half-written there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from sweeplab.doctor.check import Check, Patient, Verdict, end_of, named
from sweeplab.records.runs import RunFolder

LOOKED_AT = "folders of runs"
FROM_A_COPY = "put them back from a copy of the lab; MLflow still has what was sent"
# Kind of fault -> what it is, how bad, and the cure, in which {paths} are those found and {again} runs the study again.
FAULTS: dict[str, tuple[str, Verdict, str]] = {
    "damaged": ("files that are no JSON", "bad", FROM_A_COPY),
    "torn": ("files that are no JSON, of runs that have not ended", "warn", "rm {paths} && {again}"),
    "lost": ("trials that have ended, whose runs' descriptions or ends are gone", "bad", FROM_A_COPY),
    "no_weights": (
        "checkpoints without their weights",
        "bad",
        "put there what artifact `checkpoint` of the run has in MLflow",
    ),
    "untold": ("runs that ended, of which the storage was not told", "warn", "{again}"),
    "temporary": ("files that a kill left unfinished", "warn", "rm {paths}"),
    "nobodys": ("folders of no trial", "warn", "rm -r {paths}"),
}


def half_written(patient: Patient) -> Iterator[Check]:
    """Look for what is missing, cut off, or contradicts the storage; one check a kind."""
    found: dict[str, list[Path]] = {kind: [] for kind in FAULTS}
    n_unended = 0
    places = {(*trial, seed) for trial in patient.trials for seed in patient.seeds[trial[0]]} | {
        *patient.runs
    }
    for place in sorted(places):
        trial = patient.trials.get(place[:2])
        state = trial.state.name if trial else "none"
        faults = list(_faults(patient.folder.run(*place), state))
        n_unended += state == "RUNNING" and not faults
        for kind, path in faults:
            # What a command mends, those that work on the study are about to mend.
            if not (patient.is_running and FAULTS[kind][1] == "warn"):
                found[kind].append(path)
    for kind, paths in found.items():
        if paths:
            what, verdict, cure = FAULTS[kind]
            names = [str(path.relative_to(patient.folder.path / "runs")) for path in paths]
            written = cure.format(paths=shlex.join(map(str, paths)), again=patient.run_again)
            yield Check("runs", LOOKED_AT, verdict, named(what, names), written)
    if not any(found.values()):
        doing = "running" if patient.is_running else "waiting to be gone on with"
        rest = f", of them {doing}: {n_unended}" if n_unended else ""
        yield Check("runs", LOOKED_AT, "ok", f"whole: {len(patient.runs)}{rest}")


def _faults(run: RunFolder, state: str) -> Iterator[tuple[str, Path]]:
    described, ended = run.start_file, run.end_file
    if not described.exists() or not (ended.exists() or state in ("RUNNING", "none")):
        # A trial that runs comes to its folder, or to what is missing there, when it is gone on with.
        if state != "RUNNING":
            yield ("nobodys" if state == "none" else "lost"), run.path
        return
    for file in (described, ended):
        if file.exists() and not _is_json(file):
            yield ("torn" if state == "RUNNING" else "damaged"), file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    if state == "RUNNING" and end_of(run):
        yield "untold", run.path
    for name in ("best", "last"):
        facts = run.path / name / "model.json"
        if facts.exists() and not _weights_are_there(facts):
            yield "no_weights", facts.parent


def _is_json(file: Path) -> bool:
    return _try(lambda: isinstance(json.loads(file.read_bytes()), dict))


def _weights_are_there(facts: Path) -> bool:
    return _try(lambda: (facts.parent / json.loads(facts.read_bytes())["tensors"]).stat().st_size > 0)


def _try(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except (OSError, ValueError, KeyError):
        return False
