"""Pages are for their owner: another user of the machine reads and writes nothing through any port, nor by links."""

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest
import strangers

from sweeplab.tracking.connection import tracking_uri
from sweeplab.tracking.mlflow import MLflowTracker
from sweeplab.tracking.pages import serve

# Reads a private file, and writes one beside it, through MLflow's server at an address: by an experiment whose
# artifacts lie in a folder of one's own, and a link in the place of a run's folder of artifacts.
ATTACK = """
import json, os, sys, urllib.error, urllib.parse, urllib.request
base, place, private = sys.argv[1:]
said = []
def ask(path, content=None):
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    kind = {"Content-Type": "application/json" if isinstance(content, dict) else "text/plain"}
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data, kind), timeout=120) as answer:
            code, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        code, text = error.code, error.read().decode()
    said.append([path.partition("?")[0], code, text])
    return json.loads(text) if code == 200 and text.startswith("{") else {}
for api in ("/api/2.0/mlflow", "/ajax-api/2.0/mlflow"):
    made = ask(f"{api}/experiments/create", {"name": api + place, "artifact_location": f"file://{place}"})
    run = ask(f"{api}/runs/create", {"experiment_id": made.get("experiment_id", "0")})
    run_id = run.get("run", {"info": {"run_id": "0" * 32}})["info"]["run_id"]
    os.makedirs(os.path.join(place, run_id), exist_ok=True)
    os.symlink(os.path.dirname(private), os.path.join(place, run_id, "artifacts"))
    ask(f"/get-artifact?run_id={run_id}&path={os.path.basename(private)}")
    ask(f"{api}/artifacts/list?run_id={run_id}")
    ask(f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run_id}&path=planted", b"key")
    if not made:
        os.unlink(os.path.join(place, run_id, "artifacts"))
for path in ("/", "/health", "/version", "/graphql", "/static-files/index.html", "/x/../health", "//health"):
    ask(path)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def server(lab):
    MLflowTracker(lab, "private").open({})
    with serve(lab, tracking_uri(lab)) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def private(tmp_path):
    """Return a file that its owner alone reads, in a folder that its owner alone enters."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    file = folder / "key"
    file.touch(mode=0o600)
    file.write_text("a secret")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("is_another", [*{strangers.IS_ANOTHER, False}])
@pytest.mark.parametrize("inside", ["", "/x", "/%00", "/..", "/%C3%A9"])
def test_nobody_else_reads_or_writes_through_the_pages(is_another, inside, server, private):
    base = server.url.rpartition("/")[0] + inside
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        attacked = strangers.python(ATTACK, base, place, private, is_another=is_another)
    assert attacked.returncode == 0, attacked.stderr
    said = json.loads(attacked.stdout)
    assert len(said) == 17 and {code for _, code, _ in said} == {403}, said
    assert not any(
        server.url.rpartition("/")[2] in text or "a secret" in text for *_, text in said
    )
    assert [file.name for file in private.parent.iterdir()] == ["key"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_inside", [False, True], ids=["a root outside of the lab", "a link that leads out of it"]
)
def test_nobody_at_all_reaches_files_outside_of_the_lab(
    is_inside, server, lab, private, tmp_path
):
    place = (lab if is_inside else tmp_path) / "artifacts" / "made"
    attacked = strangers.python(ATTACK, server.url, place, private, is_another=False)
    assert attacked.returncode == 0, attacked.stderr
    said = json.loads(attacked.stdout)
    codes = {path: code for path, code, _ in said}
    assert codes["/api/2.0/mlflow/experiments/create"] == codes["/health"] == 200, (
        "the owner is let in"
    )
    of_files = [(code, text) for path, code, text in said if "artifact" in path]
    assert len(of_files) == 6
    assert all(code == 400 and "leads outside of the lab" in text for code, text in of_files), (
        of_files
    )
    assert [file.name for file in private.parent.iterdir()] == ["key"]


@pytest.mark.slow
def test_it_works_in_an_empty_folder_of_its_owner(server):
    folder = Path(f"/proc/{server.process.pid}/cwd").readlink()
    assert folder.stat().st_uid == os.getuid() and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder != Path(tempfile.gettempdir()) and not [*folder.iterdir()]
    arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert server.url.rpartition("/")[2] not in arguments
