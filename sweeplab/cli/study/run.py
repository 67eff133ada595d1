"""`sweeplab run`, `confirm` and `watch`: run a study and follow it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab import load_study, open_study
from sweeplab.cli import options
from sweeplab.cli.options import flag, option
from sweeplab.cli.printing import Answer, print_answer, print_json, say_start
from sweeplab.cli.study.plan import plan
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.api import Study


def run(
    file: options.MaybeStudyFile = None,
    override: options.Overrides = None,
    engine: Annotated[
        str | None,
        option(
            "TYPE",
            "Start workers by local, slurm or ray, instead of the file's engine.",
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
    $ sweeplab run studies/small.yaml
    $ sweeplab run studies/small.yaml --name quick -o max_iters=100
    $ sweeplab run studies/small.yaml --engine slurm -o engine.workers=32
    $ sweeplab run small --name wide --grid n_embd=32,256 --search dropout
    """
    changes = options.overrides(override, grid, search, engine)
    if dry_run:
        print_answer(plan(file, changes, name=name, allow_plugins=allow_plugins, lab=lab), as_json)
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
    watch, stop = map(study.folder.command, ("watch", "stop"))
    answer = {"study": study.folder.name, "by": by, "watch": watch, "undo": [stop]}
    return answer, f"{by}\nwatch: {watch}\nstop: {stop}"


def confirm(
    name: options.StudyName,
    top: Annotated[int | None, option("K", "Configurations per cell that race.  [default: 3]", min=1)] = None,
    seeds: Annotated[int | None, option("N", "Fresh seeds of each.  [default: 5]", min=2)] = None,
    allow_plugins: options.AllowPlugins = False,
    quiet: options.Quiet = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Confirm the best trials with fresh seeds, on the test split.

    The best trials of each cell race on fresh seeds. The winner of each cell is trained again with other fresh
    seeds, and scored on the test split, which nothing else reads. Ctrl-C saves the runs; the same command
    continues them. With `confirm` in the study file, `run` ends with this.

    \b
    $ sweeplab confirm small
    $ sweeplab confirm small --top 5 --seeds 8
    """
    study = open_study(name, lab, allow_plugins=allow_plugins)
    say_start(f"reading {name}", quiet)
    from sweeplab.cli.study.view import confirm_with_view

    raise typer.Exit(confirm_with_view(study, top, seeds, as_json, quiet))


def watch(
    name: options.MaybeStudyName = None,
    log: Annotated[
        bool, flag("Print events and the workers' output instead, also of an ended study.", "--log")
    ] = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a running study as `run` does, until it ends.

    Ctrl-C leaves the study running. The exit code is that of the study's run. The log has the trials that started and
    ended, commands given to the study, and what the workers printed; --json prints its lines for programs.

    \b
    $ sweeplab watch small
    $ sweeplab watch small --log
    """
    folder = options.named_study(name, lab)
    if log or as_json:
        _print_log(folder, as_json)
        return
    say_start(f"reading {folder.name}")
    from sweeplab.cli.study.view import watch_with_view

    raise typer.Exit(watch_with_view(folder))


def _print_log(folder: StudyFolder, as_json: bool) -> None:
    from sweeplab.sweep.following import log_lines

    try:
        for line in log_lines(folder, follow=True):
            clock = " " * 19
            if line["time"]:
                clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
            if as_json:
                print_json(line, indent=None)
            else:
                print(f"{clock}  {line['source']}: {line['text']}")
    except KeyboardInterrupt:
        return
