"""`sweeplab study plan`, `bench`, `run`, `confirm`, `watch` and `logs`: preview a study, run and follow it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab import load_study, open_study
from sweeplab.cli import options
from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import (
    Answer,
    console,
    print_answer,
    print_json,
    print_rows,
    say,
    say_start,
    say_warnings,
    workers_in_words,
)
from sweeplab.formatting import bytes_in_words, duration, several, several_named, yaml_text
from sweeplab.lab.identity import orders_in_words

if TYPE_CHECKING:
    from sweeplab.api import Study
    from sweeplab.study.plan import Plan
    from sweeplab.sweep.choosing import BenchRow
    from sweeplab.sweep.planning import Outlook


def plan(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Show what a study would do, without training.

    It shows the cells with sizes and costs, the search space as Optuna sees it, what would run where, and how long
    it takes: by the lab's earlier runs, else by a few steps, whose timing takes some seconds, once. If even one step
    takes long, a product of matrices is timed instead; for other machines and GPUs FLOPs alone give a rough interval.

    \b
    $ sweeplab study plan studies/small.yaml
    """
    from sweeplab.study.algorithms import settled_sampler

    file, changes = options.named_file(file, lab), options.overrides(override, grid, search)
    study = load_study(file, lab=lab, name=name, overrides=changes, allow_plugins=allow_plugins)
    planned = study.plan()
    ahead = study.look_ahead(planned)
    orders = orders_in_words(study.folder, study.spec)
    algorithms = {"sampler": settled_sampler(study.spec), "pruner": study.spec.pruner}
    values = {key: algorithm.model_dump() for key, algorithm in algorithms.items()}
    answer = {**planned.as_dict(), **values, "outlook": asdict(ahead)}
    return answer, lambda _: _print_plan(planned, ahead, orders)


def bench(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    grid: options.Grid = None,
    search: options.Search = None,
    again: Annotated[bool, flag("Repeat timings that are stored already.", "--again")] = False,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Time the ways to train a study on this machine's CPU.

    They differ in workers, threads, runs per stack, precision and compilation. It shows the trial-steps per second
    of each, and which one the plan takes and why. Only the cell with the most FLOPs is timed, for a minute or two,
    longer where steps are compiled.

    \b
    $ sweeplab study bench studies/small.yaml
    """
    from sweeplab.sweep.planning import bench_study

    file, changes = options.named_file(file, lab), options.overrides(override, grid, search)
    study = load_study(file, lab=lab, overrides=changes, allow_plugins=allow_plugins)
    cell, rows = bench_study(study.spec, study.folder.lab, again)
    return {"cell": cell, "ways": [asdict(row) for row in rows]}, lambda _: _print_ways(cell, rows)


def _print_ways(cell: str, rows: Sequence[BenchRow]) -> None:
    say(f"cell {cell}\n")
    table = [
        {
            "workers": row.workers,
            "threads": row.threads,
            "stack": row.stack,
            "precision": row.dtype,
            "step": ("operations", "compiled")[row.compile],
            "trial-steps/s": f"{row.trial_steps_per_second:,.4g}",
            "plan": {True: "takes it"}.get(row.taken),
        }
        for row in rows
    ]
    print_rows(table, text=("precision", "step", "plan"))
    say("\n" + next(f"the plan takes {row.why}" for row in rows if row.taken))


def _print_plan(plan: Plan, ahead: Outlook, orders: Sequence[str]) -> None:
    from rich.text import Text

    from sweeplab.study.algorithms import JOINT

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


def run(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    engine: Annotated[
        str | None,
        option(
            "TYPE",
            "Start workers by local, slurm or ray, instead of the file's engine.",
            autocompletion=options.engines,
        ),
    ] = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    dry_run: Annotated[bool, flag("Only show the plan.", "--dry-run")] = False,
    detach: Annotated[
        bool, flag("Run without this terminal; with the engine slurm as a job.", "--detach")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a study to the end of its budget, or continue it.

    Ctrl-C saves the runs; the same command continues them. Once the budget is used up, it adds nothing.

    \b
    $ sweeplab study run studies/small.yaml
    $ sweeplab study run studies/small.yaml --name quick -o max_iters=100
    $ sweeplab study run studies/small.yaml --engine slurm -o engine.workers=32
    $ sweeplab study run small --name wide --grid n_embd=32,256 --search dropout
    """
    changes = options.overrides(override, grid, search, engine)
    if dry_run:
        print_answer(plan(file, changes, None, None, name, allow_plugins, lab), as_json)
        return
    file = options.named_file(file, lab)
    study = load_study(file, lab=lab, name=name, overrides=changes, allow_plugins=allow_plugins)
    say_start(f"reading the data of {file}", quiet)
    from sweeplab.cli.printing import write_line
    from sweeplab.cli.study.view import run_with_view

    if detach:
        words = [each for each in sys.argv[1:] if each != "--detach"]
        print_answer(
            start_detached(study, words, lambda notice: None if quiet else write_line(notice)), as_json
        )
        return
    raise typer.Exit(run_with_view(study, as_json, quiet))


def start_detached(
    study: Study, words: Sequence[str], say: Callable[[str], None] = lambda notice: None
) -> Answer:
    """Run a study by `sweeplab` with these arguments, without this terminal."""
    from sweeplab.sweep.steering import detach

    by = detach(study.spec, study.lab, words, say)
    watch, stop = (study.folder.command(f"study {each}") for each in ("watch", "stop"))
    answer = {"study": study.folder.name, "by": by, "watch": watch, "undo": [stop]}
    return answer, f"{by}\nwatch: {watch}\nstop: {stop}"


def confirm(
    name: options.StudyName,
    top: Annotated[int | None, option("K", "Configurations per cell that race.  [default: 3]", min=1)] = None,
    seeds: Annotated[int | None, option("N", "Most fresh seeds of each.  [default: 5]", min=2)] = None,
    allow_plugins: options.AllowPlugins = False,
    quiet: options.Quiet = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Confirm the best trials with fresh seeds, on the test split.

    The best trials of each cell race: each is trained with two fresh seeds, then with more while its rank is
    undecided. The winner of each cell is trained again with other fresh seeds, and scored on the test split,
    which nothing else reads. Ctrl-C saves the runs; the same command continues them. With `confirm` in
    the study file, `study run` ends with this.

    \b
    $ sweeplab study confirm small
    $ sweeplab study confirm small --top 5 --seeds 8
    """
    study = open_study(name, lab, allow_plugins=allow_plugins)
    say_start(f"reading {name}", quiet)
    from sweeplab.cli.study.view import confirm_with_view

    raise typer.Exit(confirm_with_view(study, top, seeds, as_json, quiet))


def watch(name: options.MaybeStudyName = None, lab: options.Lab = None) -> None:
    """Show a running study as `study run` does, until it ends.

    Ctrl-C leaves the study running. The exit code is that of the study's run.

    \b
    $ sweeplab study watch small
    """
    folder = options.named_study(name, lab)
    say_start(f"reading {folder.name}")
    from sweeplab.cli.study.view import watch_with_view

    raise typer.Exit(watch_with_view(folder))


def logs(
    name: options.MaybeStudyName = None,
    follow: Annotated[bool, flag("Continue until the study ends.", "--follow", "-f")] = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Print a study's events and the output of its workers.

    It prints trials that started and ended, commands given to the study, and what the workers printed.

    \b
    $ sweeplab study logs small --follow
    """
    from sweeplab.sweep.following import log_lines

    try:
        for line in log_lines(options.named_study(name, lab), follow):
            at = line["time"]
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else " " * 19
            if as_json:
                print_json(line, indent=None)
            else:
                print(f"{clock}  {line['source']}: {line['text']}")
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
