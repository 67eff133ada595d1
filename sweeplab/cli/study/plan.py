"""`sweeplab plan`: what a study would do, how its models are built, and how they are trained fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import sweeplab
from sweeplab.cli import options
from sweeplab.cli.options import flag
from sweeplab.cli.printing import (
    Answer,
    print_rows,
    progress,
    say,
    say_start,
    say_warnings,
    workers_in_words,
)
from sweeplab.errors import BadInput, Problem, conflict
from sweeplab.formatting import bytes_in_words, duration, several, several_named, yaml_text
from sweeplab.records.folders import lab_folder

if TYPE_CHECKING:
    from sweeplab.records.folders import DataDescription
    from sweeplab.study.plan import Plan
    from sweeplab.sweep.choosing import BenchRow


def plan(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    layers: Annotated[
        bool,
        flag("Count the parameters part by part instead; FILE may be a preset.", "--layers"),
    ] = False,
    coordinates: Annotated[
        bool,
        flag("Check instead how activations grow with the width, on a page.", "--coordinates"),
    ] = False,
    cell: options.OneCell = None,
    bench: Annotated[
        bool, flag("Time the ways to train the largest cell on this CPU.", "--bench")
    ] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Show what a study would do, without training.

    It shows the cells with sizes and costs, the search space as Optuna sees it, and what would run where.

    --layers counts the parameters of each part of a model. --coordinates is muP's coordinate check: the model
    trains for a few steps at each width, in the standard and the mup parametrization; where activations stay flat, a
    small model's learning rate suits a large one. --bench compares workers, threads, runs per stack, precision and
    compilation by the trial-steps per second of each, which takes a minute or two.

    \b
    $ sweeplab plan studies/small.yaml
    $ sweeplab plan gpt2 --layers
    $ sweeplab plan studies/small.yaml --coordinates --cell n_layer=2
    """
    asked = {"--layers": layers, "--coordinates": coordinates, "--bench": bench}
    alone = [option for option, value in asked.items() if value]
    if len(alone) > 1:
        raise BadInput(conflict(alone[0], alone[1]))
    if cell and not (layers or coordinates):
        raise BadInput(Problem("--cell names a model", "--cell with --layers or --coordinates"))
    file, changes = options.named_file(file, lab), options.overrides(override, grid, search)
    if layers:
        return _count(file, changes, cell)
    if coordinates:
        return _check_widths(file, changes, cell, lab_folder(lab))
    say_start(f"reading the data of {file}")
    from sweeplab.study.plan import settled_sampler
    from sweeplab.sweep.planning import look_ahead

    study = sweeplab.load_study(
        file, lab=lab, name=name, overrides=changes, allow_plugins=allow_plugins
    )
    if bench:
        from sweeplab.sweep.planning import bench_study

        timed, ways = bench_study(study.spec, study.folder.lab)
        return {"cell": timed, "ways": [asdict(way) for way in ways]}, lambda _: _print_ways(
            timed, ways
        )
    planned = study.plan()
    ahead = look_ahead(study.spec, study.lab)
    algorithms = {"sampler": settled_sampler(study.spec), "pruner": study.spec.pruner}
    values = {key: algorithm.model_dump() for key, algorithm in algorithms.items()}
    answer = {**planned.as_dict(), **values, "outlook": ahead}
    return answer, lambda _: _print_plan(planned, ahead)


def _count(file: Path, changes: Sequence[str], cell: str | None) -> Answer:
    from sweeplab.runs.models import model_of, models_of
    from sweeplab.study.spec import preset_names

    if str(file) in preset_names() and not file.exists():
        counts = [model_of(str(file), changes)]
    else:
        counts = models_of(file, changes, cell)
    counted = [count.as_dict() for count in counts]
    return {"cells": counted}, _print_models


def _check_widths(file: Path, changes: Sequence[str], cell: str | None, lab: Path) -> Answer:
    from sweeplab.runs.models import check_coordinates

    with progress() as update:
        checked = check_coordinates(file, changes, cell, say=update)
    lines = []
    for name, row in checked["steepest"].items():
        lines.append(
            f"{name}: activations grow at most as width^{row['power']:.2f}, after {row['layer']}"
        )
    return checked, "\n".join(lines)


def _print_models(counted: dict[str, Any]) -> None:
    for model in counted["cells"]:
        _print_parts(model)


def _print_parts(counted: dict[str, Any]) -> None:
    say(f"{counted['model']}: {several(counted['total'], 'parameter')}")
    if counted["active"] < counted["total"]:
        say(
            f"{counted['active']:,} of them active: a token uses only the experts that it is routed to"
        )
    parts = [
        {
            "part": part["component"],
            "of": part["place"],
            "each": f"{part['each']:,}",
            "layers": part["layers"],
            "parameters": f"{part['parameters']:,}",
            "share": f"{part['parameters'] / counted['total']:.1%}",
        }
        for part in counted["parts"]
    ]
    print_rows(parts, text=("part", "of"))
    for note in counted["notes"]:
        say(note)


def _print_ways(cell: str, ways: Sequence[BenchRow]) -> None:
    say(f"cell {cell}\n")
    table = [
        {
            "workers": way.workers,
            "threads": way.threads,
            "stack": way.stack,
            "precision": way.dtype,
            "step": "compiled" if way.compile else "operations",
            "trial-steps/s": f"{way.trial_steps_per_second:,.4g}",
            "plan": "takes it" if way.taken else None,
        }
        for way in ways
    ]
    print_rows(table, text=("precision", "step", "plan"))


def _print_plan(plan: Plan, ahead: dict[str, Any]) -> None:
    _print_data(plan.name, plan.data)
    say()
    has_seeds = any(len(cell.seeds) > 1 for cell in plan.cells)
    rows = [
        {
            "cell": cell.cell,
            "params": f"{cell.n_params:,}",
            "non-embedding": f"{cell.n_params_non_embedding:,}",
            "tokens per run": f"{cell.train_tokens:,}",
            "FLOPs per run": f"{cell.train_flops:.2e}",
            "memory per run": bytes_in_words(cell.memory_bytes),
            "stack": cell.stack,
            "step": "compiled" if cell.compile and plan.device == "cpu" else None,
            "valid samples": f"{cell.valid_share:.0%}",
            "seeds": len(cell.seeds) if has_seeds else None,
        }
        for cell in plan.cells
    ]
    print_rows(rows, text=("cell",))
    say()
    _print_search(plan, ahead)
    ends, done = list[str](), ""
    if plan.trials is not None:
        ends.append(f"{several(plan.trials, 'trial')}, {several(plan.runs or 0, 'run')}")
    if plan.budget.time is not None:
        ends.append(duration(plan.budget.time))
    if plan.budget.flops is not None:
        ends.append(f"{plan.budget.flops:.3g} FLOPs")
    if ahead["done"]:
        done = f"; done already: {ahead['done']}"
    say(f"ends after {' or '.join(ends)}{done}")
    from sweeplab.study.problems import reaches_in_words

    lines = list[str]()
    if plan.train_tokens is not None:
        most = f"{plan.train_tokens:.3g} tokens and {plan.train_flops:.3g} FLOPs"
        lines.append(f"at most {most}: pruning and patience save some")
    lines.append(workers_in_words(plan))
    if plan.dtype_by:
        lines.append(f"dtype {plan.dtype}: {plan.dtype_by}")
    room = f"{bytes_in_words(plan.checkpoint_bytes)} of the {bytes_in_words(ahead['free_bytes'])} free on disk"
    lines += [
        reaches_in_words(plan.reaches),
        plan.mirror,
        f"checkpoints and snapshots take up to {room}",
    ]
    for line in filter(None, lines):
        say(line)
    say_warnings(plan.warnings)


def _print_data(name: str, data: DataDescription) -> None:
    say(
        f"{name}  {data.corpus}/{data.tokenizer}: vocabulary of {data.vocab_size}, {data.train_tokens:,} training, "
        f"{data.val_tokens:,} validation and {several(data.test_tokens, 'test token')}"
    )
    say(overlap(data.val_overlap, data.test_overlap, data.n_duplicates), "dim")
    for note in data.notes or ():
        say(note, "dim")


def overlap(val: float, test: float, n_duplicates: int) -> str:
    """Say which shares of a text's other splits occur in the training split too."""
    words = (
        f"{val:.1%} of validation and {test:.1%} of test text also occur in the training split"
    )
    if n_duplicates:
        words += f"; {n_duplicates} near-duplicate documents left out"
    return words


def _print_search(plan: Plan, ahead: dict[str, Any]) -> None:
    for epochs, max_iters in dict.fromkeys(
        (cell.epochs, cell.max_iters) for cell in plan.cells
    ):
        if epochs:
            steps = (
                several(max_iters, "iteration")
                if max_iters
                else "as many iterations as batches"
            )
            say(f"epochs {epochs:g}: {steps}")
    for name, entry in ahead["ranges"].items():
        say(f"search {name}: {yaml_text(entry)}")
    excluded: dict[str, list[str]] = {}
    for point in plan.excluded:
        values = ",".join(
            f"{name}={value}" for name, value in point.items() if name != "reason"
        )
        excluded.setdefault(point["reason"], []).append(values)
    for reason, points in excluded.items():
        say(f"excluded {several_named(points)}: breaks {reason}")
    for source in plan.warm_start:
        say(f"warm start: {several(source.trials, 'trial')} of {source.source}")
    say(f"sampler {plan.sampler}, pruner {plan.pruner}")
    rungs = dict.fromkeys(tuple(cell.rungs) for cell in plan.cells)
    for iterations in filter(None, rungs):
        say(f"rungs: halving at iterations {', '.join(map(str, iterations))}")
