"""The folders of runs: what a kill, a full disk or a hand left half-written there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sweeplab.study.doctor.check import Check, Patient, Verdict, named, outcome_of
from sweeplab.study.folder import RunFolder

LOOKED_AT = "folders of runs"


class _Finding(NamedTuple):
    what: str
    verdict: Verdict
    paths: list[Path]
    cure: str


def half_written(patient: Patient) -> Iterator[Check]:
    """Look for what is missing, cut off, or contradicts the storage; one check a kind."""
    again = patient.run_again
    findings = {
        "damaged": _Finding(
            "files that are no JSON",
            "bad",
            [],
            "rm {paths} && " + again + "  # trains those again, if it can",
        ),
        "no_end": _Finding(
            "runs without an end, whose trial has one", "bad", [], "put end.json back from a copy of the lab"
        ),
        "no_weights": _Finding(
            "checkpoints without their weights",
            "bad",
            [],
            "download artifact `checkpoint` of the run from MLflow",
        ),
        "untold": _Finding("runs that ended, of which the storage was not told", "warn", [], again),
        "temporary": _Finding("files that a kill left unfinished", "warn", [], "rm {paths}"),
        "not_begun": _Finding("folders without a run", "warn", [], "rm -r {paths} && " + again),
    }
    unended = 0
    for place, run in patient.runs.items():
        trial = patient.trials.get(place[:2])
        state = trial.state.name if trial else "none"
        kinds = list(_faults(run, state))
        unended += state == "RUNNING" and not kinds
        for kind, path in kinds:
            if not (patient.is_running and findings[kind].verdict == "warn"):
                findings[kind].paths.append(path)
    sick = [finding for finding in findings.values() if finding.paths]
    for what, verdict, paths, cure in sick:
        names = [str(path.relative_to(patient.folder.path / "runs")) for path in paths]
        written = cure.replace("{paths}", shlex.join(map(str, paths)))
        yield Check("runs", LOOKED_AT, verdict, named(what, names), written)
    if not sick:
        doing = "running" if patient.is_running else "waiting to be gone on with"
        rest = f", of them {doing}: {unended}" if unended else ""
        yield Check("runs", LOOKED_AT, "ok", f"whole: {len(patient.runs)}{rest}")


def _faults(run: RunFolder, state: str) -> Iterator[tuple[str, Path]]:
    described, ended = run.path / "run.json", run.path / "end.json"
    if not described.exists():
        yield "not_begun", run.path
        return
    for file in (described, ended):
        if file.exists() and not _is_json(file):
            yield "damaged", file
    for file in run.path.glob("*.tmp"):
        yield "temporary", file
    has_ended = ended.exists()
    if not has_ended and state not in ("RUNNING", "none"):
        yield "no_end", run.path
    if has_ended and state == "RUNNING" and outcome_of(run):
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
