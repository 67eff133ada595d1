"""Modules in the folder that one stands in are never imported, by a command or by any interpreter that it starts."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import strangers
from cli.conftest import STUDY
from terminal import captured, wait_until

import sweeplab
from sweeplab.records.folders import StudyFolder

SCRIPT = str(Path(sys.executable).parent / "sweeplab")
# In this order: each stands on the ones before it.
WALK = [
    "plan tiny.yaml",
    "run tiny.yaml --quiet",
    "extend tiny --trials-per-cell 2 --no-run",
    "run tiny.yaml --detach",
    "export tiny --output runs.csv",
    "generate tiny --prompt a --max-new-tokens 2",
    "export-hf tiny exported",
    "report tiny --page sweep",
]
TINY = (
    STUDY.replace("device: cpu", "device: cpu, compile: true")
    .replace("[8, 16]", "[8]")
    .replace("cell: 2", "cell: 1")
)


@pytest.fixture
def planted(folder):
    """Work in a folder with a module of every name, each of which says that it ran; check at the end that none has."""
    (folder / "tiny.yaml").write_text(TINY)
    said = strangers.plant_modules(folder)
    for name in ("json", "random", "numpy", "torch", "mlflow", "optuna", "uvicorn", "sweeplab"):
        assert (folder / f"{name}.py").exists(), "what the test is about"
    ran = subprocess.run([sys.executable, "-c", "import json"], cwd=folder, capture_output=True)
    assert ran.returncode and said.read_text().startswith("json"), (
        "without the safe path they run"
    )
    said.unlink()
    yield folder
    assert not said.exists(), said.read_text()


def run(*command):
    ended = captured(command, timeout=900)
    assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    return ended.stdout


@pytest.mark.slow
def test_no_command_runs_them_nor_what_it_starts(planted, monkeypatch):
    monkeypatch.setenv("SWEEPLAB_CACHE", str(planted / "cache"))  # without the compiled step
    study = StudyFolder(planted / "lab", "tiny")
    for words in WALK:
        run(SCRIPT, *words.split())
        wait_until(lambda: not study.is_run)
    assert [*planted.glob("cache/programs/*.so")]
    # From the page: one more trial, and MLflow's pages.
    run(SCRIPT, "extend", "tiny", "--trials-per-cell", "3", "--no-run")
    with subprocess.Popen(
        [SCRIPT, "dashboard", "tiny", "--json", "--no-open"], stdout=subprocess.PIPE
    ) as page:
        address = json.loads(b"".join(page.stdout.readline() for _ in range(3)))[
            "page"
        ].partition("?")[0]
        for order, content in (("order", {"order": "resume"}), ("mlflow", {})):
            asked = urllib.request.Request(
                f"{address}{order}?study=tiny", json.dumps(content).encode()
            )
            with urllib.request.urlopen(asked, timeout=300) as answer:
                said = json.loads(answer.read())
        with urllib.request.urlopen(
            said["charts"].partition("#")[0] + "/", timeout=300
        ) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        wait_until(lambda: not study.is_run)
        page.send_signal(signal.SIGINT)
    assert len({run.trial for run in study.runs()}) == 3


@pytest.mark.slow
def test_timing_steps_runs_none(planted):
    # Muon's step is not compiled, which takes minutes: the test above has a compiler.
    own = ("-o", "compile=false", "-o", "optimizer=muon")
    assert json.loads(run(SCRIPT, "plan", "tiny.yaml", "--bench", *own, "--json"))


@pytest.mark.slow
def test_python_m_runs_none(planted):
    (planted / "sweeplab.py").unlink()  # which is the program that a person asks for by -m
    assert "tiny" in run(sys.executable, "-m", "sweeplab", "plan", "tiny.yaml")


def test_every_interpreter_is_started_by_one_function():
    package = Path(sweeplab.__file__).parent
    texts = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    assert [file for file, text in texts.items() if "sys.executable" in text] == [
        package / "processes.py"
    ]
    assert not [file for file, text in texts.items() if "PYTHONPATH" in text]
