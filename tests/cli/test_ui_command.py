"""`sweeplab ui`: the links that it prints, the server behind them, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import psutil
import pytest
from chromium import chromium_page
from terminal import PROGRAM


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [*PROGRAM, "ui", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen[str]) -> dict[str, object]:
    """Return the JSON that a server's start prints; the process goes on."""
    assert process.stdout
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            return dict(json.loads(text))
    raise AssertionError(process.stderr.read() if process.stderr else text)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_lives_as_long_as_the_command(number: signal.Signals, finished) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with start("tiny", "--lab", finished.lab, "--json", "--port", str(port)) as process:
            said = printed(process)
            server = said["server"]
            assert server != f"http://127.0.0.1:{port}"
            links = said["studies"]["tiny"]
            assert links.keys() == {"charts", "table", "study"}
            assert all(link.startswith(f"{server}/#/experiments/") for link in links.values())
            with urllib.request.urlopen(server, timeout=20) as answer:
                assert b"<title>MLflow</title>" in answer.read()
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert err == f"port {port} is taken: using {server.rpartition(':')[2]}\nended\n"
    assert not psutil.pid_exists(said["pid"])


@pytest.mark.browser
def test_from_the_command_to_the_page(finished, tmp_path: Path) -> None:
    with start("tiny", "--lab", finished.lab, "--json", "--no-open") as process:
        try:
            table = printed(process)["studies"]["tiny"]["table"]
            with chromium_page(tmp_path / "profile") as page:
                page.open(table)
                cells = (
                    "[...document.querySelectorAll(\"[role=gridcell][col-id='metrics.`best_val_loss`']\")]"
                )
                page.wait_for(f"{cells}.length == 4")
                losses = page.read(
                    f"{cells}.map((cell) => [cell.getBoundingClientRect().y, +cell.innerText])"
                )
                in_order = [loss for _, loss in sorted(losses)]
                assert in_order == sorted(in_order) and len(set(in_order)) == 4
                assert "learning_rate" in page.read("document.body.innerText")
        finally:
            process.send_signal(signal.SIGINT)


def test_a_tracking_server_is_linked_to_and_none_is_started(cli, finished, folder: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        lab = Path(shutil.copytree(finished.lab, folder / "lab"))
        os.environ["MLFLOW_TRACKING_URI"] = uri
        try:
            named = cli("ui", "tiny", "--no-open")
            assert named.code == 2 and named.err.startswith(f"error: {uri}: ")
            shutil.rmtree(lab / "studies")
            said = cli("ui", "--json")
        finally:
            del os.environ["MLFLOW_TRACKING_URI"]
    assert json.loads(said.out) == {"server": uri, "pid": None, "studies": {}}


def test_what_is_refused(cli, finished, folder: Path) -> None:
    empty = cli("ui")
    assert (empty.code, empty.out) == (2, "")
    assert "has no runs to look at yet; sweeplab study run FILE trains some" in empty.err
    unknown = cli("ui", "tny", "--lab", finished.lab)
    assert unknown.code == 2 and unknown.err.endswith("did you mean 'tiny'?\n")
    (folder / "mine.yaml").write_text("columns: [stat]\nsort: {by: best_val_loss}\n")
    wrong = cli("ui", "tiny", "--lab", finished.lab, "--dashboard", "mine.yaml")
    assert wrong.code == 2 and wrong.err.startswith("error: mine.yaml:1:11: columns cannot be 'stat'")
    assert cli("ui", "tiny", "--port", "70000").code == 2
