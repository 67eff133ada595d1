"""A study's owner is told how it ended and that it idles: real Apprise, to a server on loopback."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

import sweeplab
from sweeplab.errors import BadInput

pytest.importorskip("apprise", reason="apprise, of the extra notify, is not installed")

STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_embd: 16, n_head: 2, dropout: 0.0,
        warmup_iters: 2, eval_interval: 10, eval_iters: 1, grad_clip: null, device: cpu}
search: {learning_rate: [1e-3, 3e-3]}
budget: {trials_per_cell: 2}
engine: {workers: 1}
notify: [OWNERS_PHONE]
"""


class Mailbox(BaseHTTPRequestHandler):
    """Keeps what it is sent, and answers with the code that the server was given."""

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.letters.append((content["title"], content["message"]))
        self.send_response(self.server.code)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Mailbox) as server:
        server.letters, server.code = [], 200
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def study(tmp_path, server, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("OWNERS_PHONE", f"json://127.0.0.1:{server.server_port}/")
    (tmp_path / "tiny.yaml").write_text(STUDY)
    return sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path / "lab")


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_a_deaf_owner_fails_no_trial_and_then_hears_once_how_the_study_ended(study, server):
    server.code = 500
    deaf = study.run()
    assert sorted(deaf.trials()["state"]) == ["complete", "complete"]
    assert deaf.errors == ["OWNERS_PHONE: Apprise could not send that the study is complete"], (
        "and no secret"
    )
    server.code = 200
    server.letters.clear()
    result = study.run()
    assert (result.status, result.errors) == ("complete", [])
    ((title, text),) = server.letters
    assert title == "sweeplab: tiny complete"
    assert "runs: 2 complete" in text
    assert f"best val_loss {result.best.loss:.4f} in {result.best.cell}" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "OWNERS_PHONE is not set"),
        ("no such thing", "OWNERS_PHONE holds no URL that Apprise knows"),
    ],
)
def test_what_cannot_be_told_is_said_before_the_study_starts(study, value, said, monkeypatch):
    monkeypatch.delenv("OWNERS_PHONE")
    if value:
        monkeypatch.setenv("OWNERS_PHONE", value)
    with pytest.raises(BadInput, match=rf"tiny\.yaml:8:10: {said}"):
        study.run()
    assert not study.lab.exists()


def test_a_url_in_the_file_is_refused_without_being_repeated(tmp_path):
    (tmp_path / "tiny.yaml").write_text(STUDY.replace("OWNERS_PHONE", "'tgram://hunter2/1'"))
    with pytest.raises(BadInput, match="not the name of an environment variable") as refused:
        sweeplab.load_study(tmp_path / "tiny.yaml", lab=tmp_path)
    assert "hunter2" not in str(refused.value)
