"""A study whose MLflow server hangs in the middle: its workers are heard, and what the server lacks is sent later."""

import os
import signal
import time
from itertools import pairwise

import pytest
from tracked import Tracked

from sweeplab.lab.events import RunEvaluated
from sweeplab.sweep import shipping
from sweeplab.sweep.supervisor import run_study
from sweeplab.tracking.pages import serve


@pytest.mark.faults
def test_a_server_that_hangs_delays_no_worker(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    monkeypatch.setattr(shipping, "SEND_SECONDS", 0.2)
    lab, heard = tmp_path / "lab", []
    with serve(tmp_path / "server", f"sqlite:///{tmp_path / 'server.db'}") as server:
        server.wait_until_ready()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        spec = tiny()

        def listen(event, _progress):
            if isinstance(event, RunEvaluated) and not hung:
                os.killpg(server.process.pid, signal.SIGSTOP)
                hung.append(time.monotonic())
            heard.append((time.monotonic(), event))

        hung = []
        end = run_study(spec, lab, listen)
        took = time.monotonic() - hung[0]
        os.killpg(server.process.pid, signal.SIGCONT)
        times = [at for at, _ in heard if at >= hung[0]]
        gaps = [after - before for before, after in pairwise(times)]
        assert len([each for _, each in heard if isinstance(each, RunEvaluated)]) == 12
        assert max(gaps) < 20 < took, "the server alone was waited for, and that at the end"
        assert end.status == "failed"
        assert "sent when the study is run again" in end.errors[0]
        assert run_study(spec, lab).status == "complete"
        tracked = Tracked(lab, spec.name)
        runs = tracked.runs()
        assert [run.state for run in runs] == ["complete"] * 4
        for run in runs:
            assert tracked.steps(run.run_id, "val_loss") == [0, 10, 20]
