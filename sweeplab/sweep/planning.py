"""Plan a study in its lab: check everything that can be checked before the first trial."""

from __future__ import annotations

import itertools
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeplab import permissions
from sweeplab.data.dataset import Dataset
from sweeplab.data.formats import user_files
from sweeplab.errors import BadInput, Problem
from sweeplab.files import existing, free_bytes, to_delete
from sweeplab.formatting import bytes_in_words, several_named, without_password, yaml_text
from sweeplab.lab.listing import StudyTrials
from sweeplab.records.folders import StudyFolder
from sweeplab.study import inputs, plan
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.file.resolve import check_imported
from sweeplab.study.file.template import section_of
from sweeplab.study.options import Algorithm
from sweeplab.study.problems import Location, dotted
from sweeplab.study.space import Space, spaces_of
from sweeplab.study.spec import StudySpec
from sweeplab.sweep import choosing
from sweeplab.sweep.trials.warm_start import read_warm_starts
from sweeplab.tracking import mirror_in_words
from sweeplab.tracking.connection import artifact_location, database_file, planned_uri
from sweeplab.train.devices import settle_devices

N_SAMPLES, SAMPLE_TOKENS = 3, 64
SHORT_CURE = "use fewer workers, a smaller batch_size or a larger grad_accum"


def make_plan(spec: StudySpec, lab: Path) -> tuple[plan.Plan, list[Space], Dataset]:
    """Check a study against its data and this machine and return what it would do.

    Raises:
        BadInput: with every reason why the study cannot start.
    """
    check_imported(spec)
    folder = StudyFolder(lab, spec.name)
    dataset = _checked_dataset(spec, folder)
    spaces, excluded = spaces_of(spec, dataset.sizes)
    samples = plan.sample_cells(spec, spaces)
    valid = [values for cell in samples for values in cell.valid]
    plan.check_task(valid)
    warnings = [*plan.warnings(spec, samples), *inputs.check_rows(spec, dataset, valid)]
    inputs.check_start(spec, inputs.read_start(spec), valid)
    plan.check_memory(spec, samples)
    plans = [plan.plan_cell(spec, cell) for cell in samples]
    data = inputs.describe_data(spec, dataset)
    sources = read_warm_starts(spec, folder, spaces, data)
    settled = settle_devices(valid[0], plan.has_cuda(spec.engine))
    # One is tracking's.
    n_copies = 1 + bool(artifact_location(lab, planned_uri(lab, spec.track.uri)))
    checkpoint_bytes = _checkpoint_bytes(spec, plans, n_copies)
    kept = sum(file.stat().st_size for file in folder.path.glob("runs/*/*/*/*.safetensors"))
    missing = checkpoint_bytes - n_copies * kept
    if free_bytes(folder.path) < missing:
        free = bytes_in_words(free_bytes(folder.path))
        cure = "--lab or SWEEPLAB_LAB name another folder"
        if spec.track.checkpoints != "none":
            cure = f"track: {{checkpoints: none}} keeps none, {cure}"
        raise BadInput(
            f"{lab} has {free} of free space, checkpoints need {bytes_in_words(missing)}; {to_delete(lab)}; {cure}"
        )
    is_here = spec.engine.type == "local"
    dtype = settled.dtype
    dtype_by = ""
    if settled.device == "cpu" and is_here:
        plans, dtype, dtype_by = choosing.choose(spec, folder, samples, plans, dtype)
    workers = plan.worker_resources(spec, plans, settled.device)
    shortage = plan.memory_shortage(plans, workers, settled.device) if is_here else ""
    if shortage:
        warnings.append(f"{shortage}: {SHORT_CURE}")
    refused = [
        f"warm start: of {source.name}, {why}" for source in sources for why in source.refused
    ]
    warnings += [*inputs.overlap_warnings(data), *refused]
    addresses = [address for _, _, address in spec.addresses if not database_file(address)]
    planned = plan.Plan(
        name=spec.name,
        cells=plans,
        excluded=[{**point, "reason": why} for point, why in excluded],
        warnings=warnings,
        **plan.totals(plans, spec.budget.trials_per_cell),
        device=settled.device,
        dtype=dtype,
        dtype_by=dtype_by,
        workers=workers,
        budget=spec.budget,
        sampler=_in_words(plan.settled_sampler(spec)),
        pruner=_in_words(spec.pruner),
        metric=spec.objective.label,
        data=data,
        checkpoint_bytes=checkpoint_bytes,
        warm_start=[
            plan.WarmStart(each.name, len(each.fitting), each.refused) for each in sources
        ],
        reaches=[
            *itertools.chain(*_reached(spec, lab).values()),
            *map(permissions.place_of, addresses),
        ],
        mirror=mirror_in_words(spec.fixed),
        is_here=is_here,
    )
    return planned, spaces, dataset


def bench_study(spec: StudySpec, lab: Path) -> tuple[str, list[choosing.BenchRow]]:
    """Time the ways to train the cell with most of a study's FLOPs on this machine; return its key and the ways.

    Raises:
        BadInput: the study cannot start, or does not train on this machine's CPU.
    """
    planned, spaces, dataset = make_plan(spec, lab)
    if planned.device != "cpu" or spec.engine.type != "local":
        how = f"{spec.name} trains on {planned.device}, engine {spec.engine.type}"
        raise BadInput(f"{how}; bench times this machine's CPU")
    samples = {sample.space.cell.key: sample for sample in plan.sample_cells(spec, spaces)}
    cell = max(planned.cells, key=lambda cell: cell.train_flops)
    values = samples[cell.cell].median
    threads = planned.workers[0].threads
    taken = choosing.Way(len(planned.workers), threads, cell.stack, planned.dtype, cell.compile)
    return cell.cell, choosing.bench(values, dataset.training(values), dataset.val, taken)


def look_ahead(spec: StudySpec, lab: Path) -> dict[str, Any]:
    """Return a plan's outlook in its lab: the search ranges as the file writes them, the trials done, and free bytes.

    `done` counts the trials that use up the budget already.
    """
    folder = StudyFolder(lab, spec.name)
    trials = StudyTrials(folder).all
    done = sum(trial.state.counts_towards_budget for trial in trials)
    ranges = {}
    for name, text in spec.as_written()["search"].items():
        # A range that is only a list of choices is written as that list.
        ranges[name] = text["choices"] if [*text] == ["choices"] else text
    return {"ranges": ranges, "done": done, "free_bytes": free_bytes(folder.path)}


def check_reach(spec: StudySpec, lab: Path) -> None:
    """Refuse paths and addresses outside of the study file's folder and the lab that only a file names, and name them.

    The file, or the lab of a study that is continued, may come from somebody else. Allowed is what the command line
    names, and what it named for an earlier run, which is remembered: a file together with the addresses to which what
    is learned from it goes.

    Raises:
        BadInput: with every place of the file that names such a path or address.
    """
    goes_to = _goes_to(spec)
    problems: list[Problem] = []
    for place, named in _reached(spec, lab).items():
        is_named = spec.source is None or spec.is_overridden(place)
        if named and not is_named and not permissions.is_allowed(*named, *goes_to):
            name = dotted(place)
            value = spec.as_written()[str(place[0])]
            value = value[str(place[1])] if isinstance(value, dict) else value
            text = value if isinstance(value, str) else yaml_text(value)
            what = f"{name} names {several_named(named)}, outside of this file's folder and of the lab"
            option = shlex.quote(f"{name}={text}")
            problems.append(spec.problem(place, what, f"-o {option}, by which you allow it"))
    for place, kind, address in spec.addresses:
        if spec.source is None or spec.is_overridden(place):
            permissions.name_address(address)
        try:
            _check_tracking(lab, spec.track.uri)
        except BadInput:  # said with all else that is wrong, when the study is planned
            continue
        try:
            with spec.blaming(place):
                if not database_file(address):
                    permissions.check_address(kind, address)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    allow_files(spec, lab)
    for _, kind, address in spec.addresses:
        if database_file(address) or permissions.is_given(kind, address):
            permissions.allow(permissions.place_of(address))


def allow_files(spec: StudySpec, lab: Path) -> None:
    """Remember that the user allows the files that a study names, together with its addresses."""
    # From the lab the study goes on without its file's folder.
    for named in (
        *_reached(spec, lab).values(),
        *_reached(spec, lab, in_folder=False).values(),
    ):
        if named:
            permissions.allow(*named, *_goes_to(spec))


def _goes_to(spec: StudySpec) -> tuple[str, ...]:
    return ("->", *(permissions.place_of(address) for _, _, address in spec.addresses))


def _reached(spec: StudySpec, lab: Path, in_folder: bool = True) -> dict[Location, list[str]]:
    # By the key that names them; with `in_folder` without those beside the study file.
    inside = [lab.resolve()]
    if spec.source and in_folder:
        inside.append(spec.source.absolute().parent.resolve())
    database = database_file(spec.track.uri or "")
    files: dict[Location, Sequence[Path]] = {}
    for key, named_place in spec.data_files.items():
        with suppress(BadInput):  # said of the data, with its place
            files["data", key] = user_files(named_place)
    files["init_from",] = [Path(spec.init_from, "model.json")] if spec.init_from else []
    files["track", "uri"] = [database] if database else []
    reached: dict[Location, list[str]] = {}
    for place, named in files.items():
        resolved = dict.fromkeys(file.resolve() for file in named)
        reached[place] = [
            str(file) for file in resolved if not any(map(file.is_relative_to, inside))
        ]
    return reached


def _checked_dataset(spec: StudySpec, folder: StudyFolder) -> Dataset:
    problems: list[Problem] = []
    if "cuda" in spec.devices and not plan.has_cuda(spec.engine):
        where = "for its workers: engine.gpus_per_worker is 0"
        if spec.engine.type == "local":
            where = "here"
        what = f"device is cuda, but there is no CUDA device {where}"
        problems.append(
            spec.problem(
                spec.place("device"), what, "cpu, or auto for the best that a machine has"
            )
        )
    try:
        with spec.blaming(("track", "uri") if spec.track.uri else None):
            _check_tracking(folder.lab, spec.track.uri)
    except BadInput as error:
        problems += error.problems
    try:
        tempfile.TemporaryFile(dir=existing(folder.path)).close()  # leaves nothing behind
    except OSError as error:
        what = f"{folder.lab} cannot be written ({error.strerror or error})"
        problems.append(Problem(f"{what}; --lab or SWEEPLAB_LAB name another folder"))
    try:
        dataset = inputs.study_dataset(spec)
    except BadInput as error:
        problems += error.problems
    if problems:
        raise BadInput(*problems)
    return dataset


def _check_tracking(lab: Path, uri: str | None) -> None:
    if uri and uri != without_password(uri):
        what = "track.uri contains a password, which the lab and tracking would store"
        allowed = "an address without a password; MLFLOW_TRACKING_URI may give the same address with it"
        raise BadInput(Problem(what, allowed))
    planned_uri(lab, uri)


def _checkpoint_bytes(spec: StudySpec, plans: Sequence[plan.CellPlan], n_copies: int) -> int:
    """Return the disk space in bytes of checkpoints, and of pruned trials' snapshots, which take four times that."""
    n_values = 0
    is_kept = spec.track.checkpoints != "none"
    for planned in plans:
        of_trial = planned.n_params * len(planned.seeds)
        n_trials = planned.n_trials(spec.budget.trials_per_cell or 1)
        if is_kept:
            n_values += n_copies * of_trial * n_trials
        if spec.pruner.type != "none":
            n_values += 4 * of_trial * min(n_trials, spec.track.snapshots)
    return 4 * n_values


def _in_words(algorithm: Algorithm) -> str:
    options = ", ".join(f"{key}={value}" for key, value in algorithm.options.items())
    return f"{algorithm.type}({options})" if options else algorithm.type


def spec_of(place: str, **keys: Any) -> StudySpec:
    """Return a study of the data at a place, or of a study file's data.

    Raises:
        BadInput: a key is not valid.
    """
    if Path(place).suffix in (".yaml", ".yml") and "corpus" not in keys:
        return read_study(Path(place))
    return read_plain({"name": "data", "data": section_of(place, Path.cwd(), **keys)})


def look_at(spec: StudySpec) -> dict[str, Any]:
    """Read a study's data, and return what was read: sizes, splits, samples, warnings.

    Raises:
        BadInput: they cannot be read.
    """
    dataset = inputs.study_dataset(spec)
    described = inputs.describe_data(spec, dataset)
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    n_tokens = sum(map(len, splits.values()))
    return {
        **described.as_dict(),
        "kind": dataset.kind,
        "n_documents": dataset.n_documents,
        "n_characters": dataset.n_characters,
        "splits": {name: len(split) for name, split in splits.items()},
        "characters_per_token": dataset.n_characters / n_tokens or None,
        "samples": [_sample(dataset, number) for number in range(N_SAMPLES)],
        "warnings": inputs.overlap_warnings(described),
    }


def _sample(dataset: Dataset, number: int) -> str:
    train, decode = dataset.train, dataset.tokenizer.decode
    if isinstance(train, type(dataset.val)) and dataset.kind == "text":
        at = number * len(train) // N_SAMPLES
        return decode(train[at : at + SAMPLE_TOKENS])  # type: ignore[index]
    assert not hasattr(train, "dtype")
    pair = number * train.n_pairs // N_SAMPLES
    start, end = train.starts[pair, 0], train.ends[2 * pair]
    source, target = train.tokens[start:end], train.tokens[end : train.ends[2 * pair + 1]]
    if dataset.labels:
        return f"{decode(source[:SAMPLE_TOKENS])} → {dataset.labels[int(target[0])]}"
    return f"{decode(source[:SAMPLE_TOKENS])} → {decode(target[:SAMPLE_TOKENS])}"
