"""`sweeplab plan`: what a study would do, how its models are built, and how they are trained fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab import load_study
from sweeplab.cli import options
from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import (
    Answer,
    console,
    print_rows,
    progress,
    say,
    say_start,
    say_warnings,
    workers_in_words,
)
from sweeplab.errors import BadInput, Problem, conflict
from sweeplab.formatting import bytes_in_words, duration, several, several_named, yaml_text
from sweeplab.lab.identity import orders_in_words
from sweeplab.records.folders import lab_folder

if TYPE_CHECKING:
    from sweeplab.study.plan import Plan
    from sweeplab.sweep.choosing import BenchRow
    from sweeplab.sweep.planning import Outlook

ALONE = ("layers", "coordinates", "bench")  # each shows something else than the plan


def plan(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    layers: Annotated[
        bool, flag("Count the parameters part by part instead; FILE may be a preset.", "--layers")
    ] = False,
    coordinates: Annotated[
        bool, flag("Check instead how activations grow with the width, on a page.", "--coordinates")
    ] = False,
    widths: Annotated[
        str | None,
        option("N,…", "Values of n_embd for --coordinates.  [default: 1, 2, 4 and 8 times mup_base_width]"),
    ] = None,
    cell: options.OneCell = None,
    bench: Annotated[bool, flag("Time the ways to train the largest cell on this CPU.", "--bench")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Show what a study would do, without training.

    It shows the cells with sizes and costs, the search space as Optuna sees it, what would run where, and how long
    it takes: by the lab's earlier runs, else by a few steps, whose timing takes some seconds, once. If even one step
    takes long, a product of matrices is timed instead; for other machines and GPUs FLOPs alone give a rough interval.

    --layers gives each part of a model its formula and count. --coordinates is muP's coordinate check: the model
    trains for a few steps at each width, in the standard and the mup parametrization; where activations stay flat, a
    small model's learning rate suits a large one. --bench compares workers, threads, runs per stack, precision and
    compilation by the trial-steps per second of each, which takes a minute or two.

    \b
    $ sweeplab plan studies/small.yaml
    $ sweeplab plan gpt2 --layers
    $ sweeplab plan studies/small.yaml --coordinates --cell n_layer=2
    """
    asked = {"layers": layers, "coordinates": coordinates, "bench": bench}
    first, *others = [each for each in ALONE if asked[each]] or [""]
    if others:
        raise BadInput(conflict(f"--{first}", f"--{others[0]}"))
    file, changes = options.named_file(file, lab), options.overrides(override, grid, search)
    if cell and first not in ("layers", "coordinates"):
        raise BadInput(Problem("--cell names a model", "--cell with --layers or --coordinates"))
    if layers:
        return _count(file, changes, cell)
    if coordinates:
        return _check_widths(file, changes, cell, widths, lab_folder(lab))
    say_start(f"reading the data of {file}")
    from sweeplab.study.algorithms import settled_sampler

    study = load_study(file, lab=lab, name=name, overrides=changes, allow_plugins=allow_plugins)
    if bench:
        from sweeplab.sweep.planning import bench_study

        timed, rows = bench_study(study.spec, study.folder.lab)
        return {"cell": timed, "ways": [asdict(row) for row in rows]}, lambda _: _print_ways(timed, rows)
    planned = study.plan()
    ahead = study.look_ahead(planned)
    orders = orders_in_words(study.folder, study.spec)
    algorithms = {"sampler": settled_sampler(study.spec), "pruner": study.spec.pruner}
    values = {key: algorithm.model_dump() for key, algorithm in algorithms.items()}
    answer = {**planned.as_dict(), **values, "outlook": asdict(ahead)}
    return answer, lambda _: _print_plan(planned, ahead, orders)


def _count(file: Path, changes: Sequence[str], cell: str | None) -> Answer:
    from sweeplab.runs.models import model_of, models_of
    from sweeplab.study.spec import preset_names

    if str(file) in preset_names() and not file.exists():
        counts = [model_of(str(file), changes)]
    else:
        counts = models_of(file, changes, cell)
    counted = [count.as_dict() for count in counts]
    if len(counted) == 1:
        return counted[0], _print_parts
    return {"cells": counted}, _print_cells


def _check_widths(
    file: Path, changes: Sequence[str], cell: str | None, widths: str | None, lab: Path
) -> Answer:
    from sweeplab.report.models import steepest_in_words, write_coordinates
    from sweeplab.runs.models import check_coordinates

    allowed = "whole numbers above 0, such as 64,128,256"
    asked = options.whole_numbers("--widths", widths, allowed) if widths is not None else []
    with progress() as update:
        checked = check_coordinates(file, changes, cell, asked, say=update)
    page = lab / "reports" / "coordinates.html"
    write_coordinates(checked, page)
    powers = [
        {"parametrization": name, "step": step, "layer": layer, "power": power}
        for (name, step, layer), power in checked.powers.items()
    ]
    sizes = [row._asdict() for row in checked.rows]
    answer = {"output": str(page), "study": checked.study, "values": checked.values}
    steepest = [f"{name}: {words}" for name, words in steepest_in_words(checked)]
    return answer | {"sizes": sizes, "powers": powers}, "\n".join([*steepest, f"{page} written"])


def _print_parts(counted: dict[str, Any]) -> None:
    say(f"{counted['model']}: {several(counted['total'], 'parameter')}")
    if counted["active"] < counted["total"]:
        say(f"{counted['active']:,} of them active: a token uses only the experts that it is routed to")
    say()
    parts = [
        {
            "part": part["component"],
            "of": part["place"],
            "formula": part["formula"],
            "each": f"{part['each']:,}",
            "layers": part["layers"],
            "parameters": f"{part['parameters']:,}",
        }
        for part in counted["parts"]
    ]
    print_rows(parts, text=("part", "of", "formula"))
    say()
    shares = [
        {"component": name, "parameters": f"{count:,}", "share": f"{count / counted['total']:.1%}"}
        for name, count in {**counted["components"], "total": counted["total"]}.items()
    ]
    print_rows(shares, text=("component",))
    say()
    say(", ".join(f"{letter} {name} {size:,}" for letter, (name, size) in counted["letters"].items()))
    for note in counted["notes"]:
        say(note)


def _print_cells(counted: dict[str, Any]) -> None:
    names = dict.fromkeys(name for model in counted["cells"] for name in model["components"])
    rows = [
        {
            "cell": model["model"],
            **{name: f"{model['components'].get(name, 0):,}" for name in names},
            "total": f"{model['total']:,}",
        }
        for model in counted["cells"]
    ]
    print_rows(rows, text=("cell",))


def _print_ways(cell: str, rows: Sequence[BenchRow]) -> None:
    say(f"cell {cell}\n")
    table = [
        {
            "workers": row.workers,
            "threads": row.threads,
            "stack": row.stack,
            "precision": row.dtype,
            "step": "compiled" if row.compile else "operations",
            "trial-steps/s": f"{row.trial_steps_per_second:,.4g}",
            "plan": "takes it" if row.taken else None,
        }
        for row in rows
    ]
    print_rows(table, text=("precision", "step", "plan"))
    say("\n" + next(f"the plan takes {row.why}" for row in rows if row.taken))


def _print_plan(plan: Plan, ahead: Outlook, orders: Sequence[str]) -> None:
    from rich.text import Text

    from sweeplab.study.options import JOINT

    data = plan.data
    sizes = (
        f"  {data.corpus}/{data.tokenizer}: vocabulary of {data.vocab_size}, "
        f"{data.train_tokens:,} training, {data.val_tokens:,} validation and {several(data.test_tokens, 'test token')}"
    )
    console().print(Text.assemble((plan.name, "bold"), sizes), soft_wrap=True)
    left_out = f"; {data.n_duplicates} near-duplicate documents left out" if data.n_duplicates else ""
    say(
        f"{data.val_overlap:.1%} of validation and {data.test_overlap:.1%} of test text "
        f"also occur in the training split{left_out}",
        "dim",
    )
    for note in data.notes or ():
        say(note, "dim")
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
            "step": {True: "compiled"}.get(cell.compile and plan.device == "cpu"),
            "valid samples": f"{cell.valid_share:.0%}",
            "seeds": len(cell.seeds) if has_seeds else None,
        }
        for cell in plan.cells
    ]
    print_rows(rows, text=("cell",))
    say()
    for epochs, max_iters in dict.fromkeys((cell.epochs, cell.max_iters) for cell in plan.cells):
        if epochs:
            steps = several(max_iters, "iteration") if max_iters else "as many iterations as batches"
            say(f"epochs {epochs:g}: {steps}")
    for name, entry in ahead.ranges.items():
        say(f"search {name}: {yaml_text(entry)}")
    for words in ahead.to_change:
        say(f"to change: {words}", "yellow")
    excluded: dict[str, list[str]] = {}
    for point in plan.excluded:
        values = ",".join(f"{name}={value}" for name, value in point.items() if name != "reason")
        excluded.setdefault(point["reason"], []).append(values)
    for reason, points in excluded.items():
        say(f"excluded {several_named(points)}: breaks {reason}")
    for source in plan.warm_start:
        say(f"warm start: {several(source.trials, 'trial')} of {source.source}")
    is_shared = plan.sampler.startswith(JOINT) and len(plan.cells) > 1
    shared = f": {several(len(plan.cells), 'cell')} learn from each other" * is_shared
    say(f"sampler {plan.sampler}{shared}, pruner {plan.pruner}")
    phases = {(cell.startup_trials, tuple(cell.rungs), cell.n_points): cell for cell in plan.cells}
    for cell in phases.values():
        where = f" in {cell.cell}" if len(phases) > 1 else ""
        if cell.startup_trials:
            first, rest = cell.startup_trials, "the others"
            if plan.budget.trials_per_cell is not None:
                total = cell.n_trials(plan.budget.trials_per_cell)
                first = min(first, total or first)
                rest = str(total - first)
            say(f"trials of each cell{where}: first {first} spread evenly, then {rest} by what they found")
        if cell.rungs:
            say(f"rungs{where}: halving at iterations {', '.join(map(str, cell.rungs))}")
    ends, to_go = list[str](), ""
    if plan.trials is not None:
        ends.append(f"{several(plan.trials, 'trial')}, {several(plan.runs or 0, 'run')}")
        to_go = f", {max(0, plan.trials - ahead.done)} to go"
    if plan.budget.time is not None:
        ends.append(duration(plan.budget.time))
    if plan.budget.flops is not None:
        ends.append(f"{plan.budget.flops:.3g} FLOPs")
    say(f"ends after {' or '.join(ends)}" + (f"; done already: {ahead.done}{to_go}" if ahead.done else ""))
    for words in orders:
        say(words)
    say(ahead.in_words)
    if plan.train_tokens is not None:
        most = f"{plan.train_tokens:.3g} tokens and {plan.train_flops:.3g} FLOPs"
        say(f"at most {most}: pruning and patience save some")
    say(workers_in_words(plan))
    if plan.dtype_by:
        for words in plan.precisions():
            say(words)
    if plan.reaches:
        say(plan.reach_in_words)
    if plan.mirror:
        say(plan.mirror)
    room = f"{bytes_in_words(plan.checkpoint_bytes)} of the {bytes_in_words(ahead.free_bytes)} free on disk"
    say(f"checkpoints and snapshots take up to {room}")
    say_warnings(plan.warnings)
