"""The live view, in a real terminal and drawn from what a supervisor knows; and what Ctrl-C does."""

import re
import signal
from io import StringIO

import psutil
import pytest
from rich.console import Console
from terminal import play
from tracked import Tracked

from sweeplab.cli.study.view import View
from sweeplab.lab.events import RunEvaluated, Tick
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.progress import CellProgress, StudyProgress

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
def drawn(tmp_path_factory):
    """Return a function that draws a view of forty cells, the first of which are done, after some events."""
    place = tmp_path_factory.mktemp("many")
    (place / "many.yaml").write_text(MANY)
    plan, spaces, _ = make_plan(read_study(place / "many.yaml"), place / "lab")

    def draw(n_done, *events, lines, columns):
        counts = {
            space.cell.key: CellProgress(4 if space.cell.index < n_done else 0)
            for space in spaces
        }
        progress = StudyProgress(plan, counts)
        view = View("many", lambda: 0)
        for event in (Tick(), *events):
            progress.take_in(event)
            view.update(event, progress)
        console = Console(
            file=StringIO(), width=columns, height=lines, force_terminal=True, color_system=None
        )
        console.print(view)
        return console.file.getvalue()

    return draw


@pytest.mark.parametrize(("lines", "columns"), [(30, 80), (20, 60), (16, 200)])
@pytest.mark.parametrize("n_running", [1, 3, 40])
def test_it_fits_and_no_loss_is_cut(n_running, lines, columns, drawn):
    events = [
        RunEvaluated(
            cell="n_layer=1,n_embd=8", trial=trial, seed=0, iteration=at, val_loss=loss
        )
        for trial in range(n_running)
        for at, loss in ((10, 3.25), (20, 3.5 - trial / 8))
    ]
    rows = drawn(9, *events, lines=lines, columns=columns).splitlines()
    assert len(rows) < lines and max(map(len, rows)) <= columns
    shown = [row.split()[-3:] for row in rows if "#" in row]
    expected = [[f"#{trial}", "20/100", f"{3.5 - trial / 8:.3f}"] for trial in range(n_running)]
    assert shown and shown == expected[: len(shown)]
    more = re.findall(r"(\d+) more trials", "\n".join(rows))
    assert len(shown) + sum(map(int, more)) == n_running
    assert any("36 of 160 trials" in row for row in rows)


@pytest.mark.slow
def test_in_a_terminal(finished):
    played, frames = finished.played, finished.played.screen.frames
    assert frames[0].startswith("reading ") and all(
        len(frame.splitlines()) < 30 for frame in frames
    )
    for said in ("tiny: starting", "4 of 4 trials", "updating tracking and writing the report"):
        assert any(said in frame for frame in frames)
    # The view is gone, the cursor is back, and what is left is how it ended.
    assert played.raw.rfind("\x1b[?25h") > played.raw.rfind("\x1b[?25l")
    rows = [row.partition(" ")[0] for row in played.screen.text.splitlines()]
    assert rows == ["reading", "tiny", "best", "law", "check", "next", "open"]


SET = (
    "max_iters=1000000",
    "compile=false",
    "patience=null",
    "save_interval=1000",
    "eval_interval=500",
)
LONG = [word for text in SET for word in ("-o", text)]


def trains(screen):
    return bool(re.search(r"#\d +500/1000000", screen.text))


def check_idle(folder):
    """Check that no process works in the folder, and tracking has no run as running."""
    commands = [
        " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    ]
    assert not [
        each for each in commands if "sweeplab.sweep.worker" in each and str(folder) in each
    ]
    client = Tracked(folder / "lab", "tiny").client
    experiment = client.get_experiment_by_name("tiny")
    assert "RUNNING" not in {
        run.info.status for run in client.search_runs([experiment.experiment_id])
    }


@pytest.mark.slow
@pytest.mark.parametrize("sent", [["INT"], ["INT", "INT"], ["TERM"]], ids=" ".join)
def test_a_signal_puts_the_runs_away_and_the_study_goes_on(sent, folder, finished):
    (folder / "tiny.yaml").write_text(finished.file.read_text())
    conditions = [trains, lambda screen: "stopping" in screen.text]
    signals = [
        (condition, signal.Signals[f"SIG{each}"])
        for condition, each in zip(conditions, sent, strict=False)
    ]
    played = play(["run", "tiny.yaml", *LONG], folder, signals=signals)
    assert played.code == 130 and "Traceback" not in played.raw
    rows = [row.partition(": ")[0] for row in played.screen.text.splitlines()]
    assert "tiny   interrupted" in rows and "next   sweeplab resume tiny" in played.screen.text
    check_idle(folder)
    kept = [*(folder / "lab" / "studies" / "tiny" / "runs").glob("*/*/state*")]
    assert kept or sent != ["INT"], "what to go on from is kept"
    again = play(["run", "tiny.yaml", *LONG, "-o", "budget.time=1s"], folder)
    assert again.code == 0, again.screen.text
    check_idle(folder)
