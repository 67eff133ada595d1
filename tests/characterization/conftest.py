"""One lab for all that is written down here: three studies of a few seconds, and what every command said of them.

`alpha` has two cells, pairs of seeds and a pruned trial; `gamma` is the same with other options; `beta`, with a
plugin's metric, has a failed and a stopped trial and was steered while it ran.
"""

import io
import json
import random
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest
from characterization.shape import Golden, Shapes
from filelock import FileLock
from workers_here import workers_here

import sweeplab
from sweeplab.cli import main
from sweeplab.lab.events import RunEvaluated, TrialEnded

ALPHA = """\
# Two cells, and one trial that is pruned by far.
name: alpha
data: {corpus: text, path: corpus.txt, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 60, n_embd: 8, n_head: 2, warmup_iters: 2, dropout: 0.0,
        eval_interval: 20, eval_iters: 2, device: cpu}
grid: {n_layer: [1, 2]}
search:
  learning_rate: {min: 1e-4, max: 1e-1, log: true}
  weight_decay: [0.0, 0.1]
  min_lr: {expr: learning_rate / 10}
budget: {trials_per_cell: 3}
sampler: random
pruner: {type: threshold, upper: 2.8, n_warmup_steps: 30}
seeds: [0, 1]
engine: {workers: 1, threads: 1, stack: 4}
"""
BETA = """\
name: beta
plugins: [parts.py]
data: {corpus: text, path: corpus.txt, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 1000000, n_embd: 8, n_head: 2, n_layer: 1, warmup_iters: 2,
        dropout: 0.0, eval_interval: 20, eval_iters: 1, save_interval: 1000, patience: null, device: cpu,
        compile: false}  # so many steps would be compiled, which takes longer than all that is done here
search: {learning_rate: {min: 1e-4, max: 1e-1, log: true}}
objective: {metric: picky}
budget: {trials_per_cell: 2}
sampler: random
pruner: none
engine: {workers: 1, threads: 1, stack: 4}
"""
PARTS = """\
from sweeplab.plugins import metric

@metric("picky")
def picky(model, batches, record):
    if model.values.learning_rate < 5e-4:
        return float("nan")
    return record.val_loss
"""
WORDS = "a tree the river of stones moves under light and rain while small birds sing to no one in an old red barn"
# While beta runs; while it is paused.
WHILE_IT_RUNS = ("study show beta --json", "stop beta/0 --json")
WHILE_IT_RESTS = (
    "study show beta --json",
    "study enqueue beta learning_rate=2e-3 --json",
    "study extend beta --trials-per-cell 3 --json",
    "study resume beta --json",
    "study stop beta --json",
)


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Lab:
    """The folder with the study files and the lab, and what was said while the studies ran."""

    place: Path
    said: dict[str, Said]
    events: dict[str, list[str]]

    @property
    def studies(self):
        return self.place / "lab" / "studies"


def command(line):
    """Run one command in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["sweeplab", *line.split()])
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


class _Steering:
    """Gives beta its orders as its trials come, and keeps what is said."""

    def __init__(self):
        self.said = {}
        self.events = {}
        self._evaluated = set()
        self._ended = {}
        self._steps = iter((self._is_under_way, self._has_stopped_one, self._rests))
        self._step = next(self._steps)
        self._deadline = time.monotonic() + 280

    @property
    def is_done(self):
        return self._step is None

    def hear(self, event, progress):
        assert time.monotonic() < self._deadline, (
            f"beta never came so far: {self._evaluated}, {self._ended}"
        )
        self.events.setdefault(
            f"event {type(event).__name__}", sorted(each.name for each in fields(event))
        )
        if isinstance(event, RunEvaluated):
            self._evaluated.add(event.trial)
        elif isinstance(event, TrialEnded):
            self._ended[event.trial] = event.ending.outcome
        if self._step and self._step(progress):
            self._step = next(self._steps, None)

    def know(self, what):
        self.events.setdefault(type(what).__name__, [each.name for each in fields(what)])

    def _say(self, when, lines):
        self.said |= {f"{line} ({when})": command(line) for line in lines}
        return True

    def _is_under_way(self, _):
        live = self._evaluated - self._ended.keys()
        return (
            "failed" in self._ended.values()
            and len(live) == 2
            and self._say("running", WHILE_IT_RUNS)
        )

    def _has_stopped_one(self, _):
        return "stopped" in self._ended.values() and self._say(
            "running", ("study pause beta --json",)
        )

    def _rests(self, _):
        return "event WorkerExited" in self.events and self._say("paused", WHILE_IT_RESTS)


def _make(place):
    drawn = random.Random(5)
    (place / "corpus.txt").write_text(
        " ".join(drawn.choice(WORDS.split()) for _ in range(4000))
    )
    for name, text in (("alpha.yaml", ALPHA), ("beta.yaml", BETA), ("parts.py", PARTS)):
        (place / name).write_text(text)
    said = {}
    with chdir(place), workers_here():
        ran = "study run alpha.yaml --json"
        said[ran] = command(ran)
        steering = _Steering()
        beta = sweeplab.load_study("beta.yaml", allow_plugins=True)
        result = beta.run(
            steering.hear, on_evaluation=steering.know, on_trial_end=steering.know
        )
        steering.know(result)
        assert (result.status, steering.is_done) == ("interrupted", True), result
        ran = "study run alpha.yaml --name gamma -o budget.trials_per_cell=1 -o seeds=[1] -o pruner=none"
        said[ran] = command(ran)
        reported, compared = (
            "report alpha --page sweep --json",
            "diff alpha gamma --page --json",
        )
        said[reported] = command(reported)
        said[compared] = command(compared)
    said |= steering.said
    kept = {line: asdict(each) for line, each in said.items()}
    (place / "said.json").write_text(json.dumps([kept, steering.events]))


@pytest.fixture(scope="session")
def lab(shared_folder):
    """Return the finished lab, which all processes of the tests share. Not to be added to."""
    place = shared_folder / "characterised"
    with FileLock(f"{place}.lock"), pytest.MonkeyPatch.context() as patch:
        for name in ("SWEEPLAB_LAB", "MLFLOW_TRACKING_URI", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        if not (place / "said.json").exists():
            place.mkdir()
            patch.chdir(place)
            _make(place)
    said, events = json.loads((place / "said.json").read_text())
    return Lab(place, {line: Said(**each) for line, each in said.items()}, events)


@pytest.fixture
def place(lab, monkeypatch):
    """Work beside the lab, which commands find by themselves.

    One test at a time: who looks whether a study is run holds its lock for an instant, and another would see that.
    """
    monkeypatch.chdir(lab.place)
    for name in ("SWEEPLAB_LAB", "MLFLOW_TRACKING_URI", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with FileLock(lab.place.with_suffix(".turn")):
        yield lab.place


@pytest.fixture
def shapes(lab, tmp_path):
    """Return what describes values without the test's own folders."""
    return Shapes(lab.place, tmp_path)


@pytest.fixture(scope="module")
def golden(request):
    """Return the descriptions of this module."""
    return Golden(request.path.stem.removeprefix("test_"))
