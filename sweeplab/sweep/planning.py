"""Plan a study in its lab: all that can be checked before the first trial is checked here."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sweeplab.data.corpora import user_files
from sweeplab.data.dataset import Dataset
from sweeplab.errors import BadInput, Problem
from sweeplab.formatting import bytes_in_words, several_named, without_password, yaml_text
from sweeplab.lab.listing import study_names
from sweeplab.records.folders import StudyFolder
from sweeplab.study import plan
from sweeplab.study.inputs import (
    check_rows,
    check_start,
    describe_data,
    overlap_warnings,
    placed_dataset,
    read_start,
)
from sweeplab.study.plugins import check_imported
from sweeplab.study.problems import dotted
from sweeplab.study.space import Cell, Space, cells
from sweeplab.study.spec import TABLE_SUFFIX, Algorithm, StudySpec
from sweeplab.sweep.trials.warm_start import WarmStartSource, read_warm_starts
from sweeplab.tracking.connection import artifact_location, database_file, tracking_uri
from sweeplab.train.devices import cuda_count, settle_devices

# The samplers that learn from whatever trials there are.
LEARNING = ("tpe", "gp")


def make_plan(spec: StudySpec, lab: Path) -> tuple[plan.Plan, list[Cell], Dataset]:
    """Check a study against its data and this machine and return what it would do.

    Raises:
        BadInput: with every reason why the study cannot start.
    """
    check_imported(spec)
    folder = StudyFolder(lab, spec.name)
    dataset = _checked_dataset(spec, folder)
    vocab_size = dataset.tokenizer.vocab_size
    found, excluded = cells(spec, vocab_size)
    spaces = [Space(spec, cell, vocab_size) for cell in found]
    plan.check_grid_sampler(spec, spaces)
    samples = plan.sample_cells(spec, spaces)
    valid = [values for cell in samples for values in cell.valid]
    cut = check_rows(spec, dataset, valid)
    check_start(spec, read_start(spec), valid)
    plans = [plan.plan_cell(spec, cell) for cell in samples]
    data = describe_data(spec, dataset)
    sources = read_warm_starts(spec, folder, spaces, data)
    settled = settle_devices(valid[0])
    n_copies = 2 if artifact_location(lab, tracking_uri(lab, spec.track.uri)) else 1  # one is tracking's
    checkpoint_bytes = _checkpoint_bytes(spec, plans, n_copies)
    _check_disk(folder, checkpoint_bytes, n_copies)
    planned = plan.Plan(
        name=spec.name,
        cells=plans,
        excluded=[{**point, "reason": reason} for point, reason in excluded],
        warnings=[
            *plan.warnings(spec, samples),
            *cut,
            *overlap_warnings(data),
            *_warm_start_warnings(spec, sources),
        ],
        **plan.totals(plans, spec.budget.trials_per_cell),
        device=settled.device,
        dtype=settled.dtype,
        workers=plan.worker_resources(spec, plans, settled.device),
        budget=spec.budget,
        sampler=_in_words(spec.sampler),
        pruner=_in_words(spec.pruner),
        metric=spec.objective.metric,
        data=data,
        checkpoint_bytes=checkpoint_bytes,
        warm_start=[plan.WarmStart(each.name, len(each.fitting), each.refused) for each in sources],
        reaches=[what for named in _reached(spec, lab).values() for what in named],
    )
    return planned, found, dataset


def check_reach(spec: StudySpec, lab: Path) -> None:
    """Refuse to read or write what a study file alone names outside of its own folder and the lab.

    A study may be somebody else's: what it reads goes into checkpoints, and where it tracks they are sent. The command
    line's word is the user's, and so is what a study of this lab was run with.

    Raises:
        BadInput: with every place of the file that names such a thing.
    """
    if spec.source in (
        None,
        StudyFolder(lab, spec.name).canonical_file,
    ):  # no file, or that of a study that was run
        return
    problems = []
    known = {what for name in study_names(lab) for what in _reached_before(StudyFolder(lab, name))}
    for place, named in _reached(spec, lab).items():
        new = [what for what in named if what not in known and Path(what).is_absolute()]
        if new and not spec.is_overridden(place):
            name, value = dotted(place), spec.as_written()[place[0]]
            value = value[place[1]] if isinstance(value, dict) else value
            said = shlex.quote(f"{name}={value if isinstance(value, str) else yaml_text(value)}")
            what = f"{name} names {several_named(new)}, outside of this file's folder and of the lab"
            problems.append(spec.problem(place, what, f"-o {said}, which is your word for it"))
    if problems:
        raise BadInput(*problems)


def _reached_before(folder: StudyFolder) -> Sequence[str]:
    """Return what a study of the lab reached when it was last run."""
    return folder.read(folder.plan_file).get("reaches", ()) if folder.plan_file.exists() else ()


def _reached(spec: StudySpec, lab: Path) -> dict[tuple[str, ...], list[str]]:
    """Return what lies outside of the study file's folder and the lab, by where the study names it."""
    own = [each.resolve() for each in (lab, *([spec.source.absolute().parent] if spec.source else ()))]
    start, uri = spec.init_folder, spec.track.uri
    files: dict[tuple[str, ...], Sequence[Path]] = {
        ("data", "path"): user_files(spec.data_path) if spec.data_path else (),
        ("init_from",): (start / "model.json",) if start else (),
        ("warm_start",): [Path(each) for each in spec.warm_starts if each.endswith(TABLE_SUFFIX)],
    }
    found: dict[tuple[str, ...], list[str]] = {}
    database = database_file(uri) if uri else None
    if database:
        files["track", "uri"] = (database,)
    elif uri:
        found["track", "uri"] = [without_password(uri)]
    for place, named in files.items():
        resolved = dict.fromkeys(each.resolve() for each in named)
        found[place] = [str(each) for each in resolved if not any(map(each.is_relative_to, own))]
    return found


def _warm_start_warnings(spec: StudySpec, sources: Sequence[WarmStartSource]) -> list[str]:
    found = [f"warm start: of {source.name}, {each}" for source in sources for each in source.refused]
    if sources and spec.sampler.type not in LEARNING:
        learning = ", ".join(LEARNING)
        found.append(f"warm start: sampler {spec.sampler.type} learns nothing from it; {learning} do")
    return found


def _checked_dataset(spec: StudySpec, folder: StudyFolder) -> Dataset:
    """Return the study's data, once this machine has what the study needs; says at once all that is wrong."""
    problems: list[Problem] = []
    place = spec.place_of("device", "cuda")
    asked = (spec.fixed.get("device"), *spec.grid.get("device", ()), *spec.changed.get("device", ()))
    if place and "cuda" in asked and not cuda_count():
        what = "device is cuda, but there is no CUDA device here"
        problems.append(spec.problem(place, what, "cpu, or auto for the best that a machine has"))
    try:
        with spec.blaming(("track", "uri") if spec.track.uri else None):
            _check_without_password(spec.track.uri or "")
            tracking_uri(folder.lab, spec.track.uri)
    except BadInput as error:
        problems += error.problems
    try:
        tempfile.TemporaryFile(dir=_existing(folder.path)).close()  # leaves nothing behind
    except OSError as error:
        what = f"{folder.lab} cannot be written ({error.strerror or error})"
        problems.append(Problem(f"{what}; --lab or SWEEPLAB_LAB name another folder"))
    try:
        dataset = placed_dataset(spec)
    except BadInput as error:
        problems += error.problems
    if problems:
        raise BadInput(*problems)
    return dataset


def _check_without_password(uri: str) -> None:
    if uri != without_password(uri):
        what = "track.uri holds a password, which the lab and tracking would keep"
        allowed = "an address without one; MLFLOW_TRACKING_URI may name the same one with it"
        raise BadInput(Problem(what, allowed))


def _checkpoint_bytes(spec: StudySpec, plans: Sequence[plan.CellPlan], n_copies: int) -> int:
    """Return what checkpoints and pruned trials' snapshots take when all is done, and others' while it trains.

    A snapshot has four rows, and of a run that trains there are two.
    """

    def n_values(per_cell: int) -> int:
        return sum(each.n_params * each.n_trials(per_cell) * len(each.seeds) for each in plans)

    per_cell = spec.budget.trials_per_cell or 1
    checkpoints = 0 if spec.track.checkpoints == "none" else n_copies * n_values(per_cell)
    pruned = 0 if spec.pruner.type == "none" else n_values(min(per_cell, spec.track.snapshots))
    return 4 * (checkpoints + 4 * pruned + 2 * 4 * max(each.n_params for each in plans))


def _check_disk(folder: StudyFolder, needed: int, n_copies: int) -> None:
    kept = sum(file.stat().st_size for file in folder.path.glob("runs/*/*/*/*.safetensors"))
    free, missing = shutil.disk_usage(_existing(folder.path)).free, needed - n_copies * kept
    if free < missing:
        what = f"has room for {bytes_in_words(free)}, checkpoints need {bytes_in_words(missing)}"
        cure = "track: {checkpoints: none} keeps none, --lab or SWEEPLAB_LAB name another folder"
        raise BadInput(f"{folder.lab} {what}; {cure}")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _in_words(algorithm: Algorithm) -> str:
    options = ", ".join(f"{key}={value}" for key, value in algorithm.options.items())
    return f"{algorithm.type}({options})" if options else algorithm.type
