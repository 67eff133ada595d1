"""The live view, in a real terminal and drawn from what a supervisor knows; and what Ctrl-C does."""

import re
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from terminal import Played, Screen, play

from sweeplab.cli.study.view import View
from sweeplab.lab.events import Event, RunEvaluated, Tick
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.progress import CellProgress, StudyProgress
from sweeplab.tracking.connection import connect, tracking_uri

MANY = """\
name: many
data: {corpus: python-docs, tokenizer: char}
fixed: {max_iters: 100, block_size: 16, n_head: 2, dtype: float32}
grid: {n_layer: [1, 2, 3, 4], n_embd: [8, 16, 24, 32, 40, 48, 56, 64, 72, 80]}
search: {learning_rate: suggested}
budget: {trials_per_cell: 4}
engine: {workers: 2}
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that draws a view of forty cells, the first of which are done, after some events."""
    place = tmp_path_factory.mktemp("many")
    (place / "many.yaml").write_text(MANY)
    plan, cells, _ = make_plan(read_study(place / "many.yaml"), place / "lab")

    def draw(
        n_done: int, *events: Event, lines: int = 20, columns: int = 60, interrupts: int = 0, **settings
    ) -> str:
        counts = {cell.key: CellProgress(4 if cell.index < n_done else 0) for cell in cells}
        progress = StudyProgress(plan, counts)
        view = View("many", lambda: interrupts)
        for event in (Tick(), *events):
            progress.take_in(event)
            view.update(event, progress)
        settings = {"force_terminal": True, "color_system": None} | settings
        console = Console(file=StringIO(), width=columns, height=lines, **settings)
        console.print(view)
        return console.file.getvalue()

    return draw


def evaluated(cell: str, trial: int, iteration: int) -> RunEvaluated:
    return RunEvaluated(cell=cell, trial=trial, seed=0, iteration=iteration, val_loss=2.5)


@pytest.mark.parametrize(("lines", "columns"), [(30, 80), (20, 60), (16, 200)])
@pytest.mark.parametrize("n_running", [1, 3, 40])
def test_it_fits_and_no_loss_is_cut(n_running: int, lines: int, columns: int, drawn) -> None:
    events = [
        replace(evaluated("n_layer=1,n_embd=8", trial, at), val_loss=loss)
        for trial in range(n_running)
        for at, loss in ((10, 3.25 - trial / 8), (20, 3.5))
    ]
    rows = drawn(9, *events, lines=lines, columns=columns).splitlines()
    assert len(rows) < lines and max(map(len, rows)) <= columns
    shown = [row.split()[-4:] for row in rows if "#" in row]
    expected = [[f"#{trial}", "20/100", "3.500", f"{3.25 - trial / 8:.3f}"] for trial in range(n_running)]
    assert shown and shown == expected[: len(shown)]
    more = re.findall(r"(\d+) more trials", "\n".join(rows))
    assert len(shown) + sum(map(int, more)) == n_running
    assert any("36 of 160 trials" in row for row in rows)


@pytest.mark.slow
def test_in_a_terminal(finished) -> None:
    played: Played = finished.played
    starting, *frames = played.screen.frames
    assert "reading " in starting and any("tiny: starting" in frame for frame in played.screen.frames)
    assert any("4 of 4 trials" in frame for frame in frames)
    assert any("updating tracking and writing the report" in frame for frame in frames)
    assert all(len(frame.splitlines()) < 30 for frame in frames)
    # The view is gone, the cursor is back, and what is left is how it ended.
    assert played.raw.rfind("\x1b[?25h") > played.raw.rfind("\x1b[?25l")
    reading, *rows = played.screen.text.splitlines()
    assert reading.startswith("reading ")
    assert [row.partition(" ")[0] for row in rows] == ["tiny", "best", "law", "check", "next", "open"]


SET = "max_iters=1000000", "compile=false", "patience=null", "save_interval=1000", "eval_interval=500"
LONG = [word for text in SET for word in ("-o", text)]


def trains(screen: Screen) -> bool:
    return bool(re.search(r"#\d +500/1000000", screen.text))


def interrupted(folder: Path, finished, *signals) -> Played:
    (folder / "tiny.yaml").write_text(finished.file.read_text())
    return play(["study", "run", "tiny.yaml", *LONG], folder, signals=signals)


def statuses(lab: Path) -> set[str]:
    client = connect(lab, tracking_uri(lab))
    (experiment,) = [each for each in client.search_experiments() if each.name == "tiny"]
    return {run.info.status for run in client.search_runs([experiment.experiment_id])}


def nothing_runs(folder: Path) -> bool:
    """Say whether no process works in the folder, and tracking has no run as running."""
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    workers = [
        command for command in commands if "sweeplab.sweep.worker" in command and str(folder) in command
    ]
    return not workers and "RUNNING" not in statuses(folder / "lab")


@pytest.mark.slow
def test_ctrl_c_puts_the_runs_away_and_says_how_to_go_on(folder: Path, finished) -> None:
    played = interrupted(folder, finished, (trains, signal.SIGINT))
    assert played.code == 130
    assert "Traceback" not in played.raw
    rows = played.screen.text.splitlines()
    assert any(row.startswith("tiny   interrupted: ") for row in rows), "a second trial waits for the first"
    assert any(row.startswith("next   sweeplab resume tiny") for row in rows)
    assert nothing_runs(folder)
    states = sorted((folder / "lab" / "studies" / "tiny" / "runs").glob("*/*/state*"))
    assert states, "what to go on from is kept"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C twice", "SIGTERM"])
def test_the_other_ways_to_stop(sent: signal.Signals, folder: Path, finished) -> None:
    second = [(lambda screen: "stopping" in screen.text, sent)] if sent == signal.SIGINT else []
    played = interrupted(folder, finished, (trains, sent), *second)
    assert played.code == 130
    assert "Traceback" not in played.raw
    assert "tiny   interrupted: " in played.screen.text
    assert nothing_runs(folder)
    again = play(["study", "run", "tiny.yaml", *LONG, "-o", "budget.time=1s"], folder)
    assert again.code == 0, again.screen.text
    assert nothing_runs(folder)
