"""A study file as foreign input: what it alone names is not read, not written, and not sent what is the user's."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sweeplab import load_study
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.lab.events import Event, StudyNotice
from sweeplab.lab.showing import show_study
from sweeplab.lab.storage import VARIABLE, choose_storage
from sweeplab.records.folders import StudyFolder
from sweeplab.tracking import connection
from sweeplab.tracking.connection import CREDENTIALS, tracking_uri
from sweeplab.tracking.experiment import count_studies

TEXT = "".join(f"Line {i} of what is written here, {i * i % 97}.\n" for i in range(400))
STUDY = """\
name: foreign
data: {corpus: text, tokenizer: char, path: "PATH"}
fixed: {block_size: 16, batch_size: 4, max_iters: 4, n_layer: 1, n_head: 2, n_embd: 8, warmup_iters: 1,
        eval_interval: 2, eval_iters: 1, device: cpu}
search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}
budget: {trials_per_cell: 1}
engine: {workers: 1}
"""


@dataclass
class Places:
    """A study file's folder, a file of the user's that lies elsewhere, and a lab."""

    own: Path
    secret: Path
    lab: Path
    file: Path = field(init=False)

    def __post_init__(self) -> None:
        for folder in (self.own, self.secret.parent, self.lab):
            folder.mkdir()
        self.secret.write_text(TEXT)
        self.file = self.own / "foreign.yaml"

    def study(self, path: str, more: str = "", *overrides: str):
        self.file.write_text(STUDY.replace("PATH", path) + more)
        return load_study(self.file, lab=self.lab, overrides=overrides)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    for name in (*{each for names in CREDENTIALS.values() for each in names}, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "_named", set())
    monkeypatch.setenv("HOME", str(tmp_path))
    return Places(tmp_path / "own", tmp_path / "home" / "secret.txt", tmp_path / "lab")


def refused(study, *parts: str) -> None:
    """A run is refused in one line and leaves nothing; a plan says what is reached, and that."""
    with pytest.raises(BadInput) as error:
        study.run()
    (problem,) = error.value.problems
    said = str(problem)
    assert "\n" not in said
    for part in parts:
        assert part in said
    assert not list(study.lab.iterdir())
    assert f"cannot be run: {said}" in study.plan().warnings


@pytest.mark.parametrize("written", ["absolute", "relative", "glob", "link"])
def test_a_file_of_the_user_s_is_read_at_the_user_s_word_only(written: str, places: Places) -> None:
    if written == "link":
        (places.own / "text.txt").symlink_to(places.secret)
    path = {
        "absolute": str(places.secret),
        "relative": "../home/secret.txt",
        "glob": f"{places.secret.parent}/*.txt",
        "link": f"{places.own}/*.txt",
    }[written]
    study = places.study(path)
    place = (
        f"{places.file}:2:45: data.path names {places.secret}, outside of this file's folder and of the lab"
    )
    refused(study, place, "-o ", "by which you allow it")
    assert study.plan().reaches == [str(places.secret)]
    assert study.plan().reach_in_words == f"outside of its folder and the lab: {places.secret}"
    allowed = places.study(path, "", f"data.path={path}").plan()
    assert allowed.reaches == [str(places.secret)] and not [
        each for each in allowed.warnings if "cannot be run" in each
    ]


def test_what_lies_beside_the_file_or_in_the_lab_needs_no_word(places: Places) -> None:
    for folder in (places.own, places.lab):
        (folder / "text.txt").write_text(TEXT)
        plan = places.study(str(folder / "text.txt")).plan()
        assert plan.reaches == [] and not [each for each in plan.warnings if "cannot be run" in each]


def test_tables_and_databases_need_the_word_too(places: Places) -> None:
    (places.own / "text.txt").write_text(TEXT)
    table = places.secret.with_name("trials.csv")
    table.write_text("learning_rate,value\n0.001,3.5\n")
    refused(places.study("text.txt", f"warm_start: [{table}]\n"), "warm_start names", str(table))
    database = places.secret.with_name("other.db")
    study = places.study("text.txt", f"track: {{uri: 'sqlite:///{database}'}}\n")
    refused(study, f"track.uri names {database}", f"-o track.uri=sqlite:///{database}")


@pytest.mark.slow
def test_the_word_is_given_once(places: Places) -> None:
    heard: list[Event] = []
    study = places.study(str(places.secret), "", f"data.path={places.secret}")
    assert study.run(lambda event, progress: heard.append(event)).status == "complete"
    notices = [event.message for event in heard if isinstance(event, StudyNotice)]
    assert notices == [f"outside of its folder and the lab: {places.secret}"]
    heard.clear()
    places.study(str(places.secret)).run(lambda event, progress: heard.append(event))
    assert not any(isinstance(event, StudyNotice) for event in heard), "once per study; then show says it"
    assert show_study(study.folder)["reaches"] == [str(places.secret)]
    again = places.study(str(places.secret)).plan()
    assert not [each for each in again.warnings if "cannot be run" in each]
    # What was a file of its own when the study was run is a link to another one now.
    (places.own / "text.txt").write_text(TEXT)
    other = places.secret.with_name("other.txt")
    other.write_text(TEXT)
    assert (
        load_study(places.file, lab=places.lab, name="mine", overrides=["data.path=text.txt"]).run().errors
        == []
    )
    (places.own / "text.txt").unlink()
    (places.own / "text.txt").symlink_to(other)
    places.study("text.txt")
    plan = load_study(places.file, lab=places.lab, name="third", overrides=["max_iters=6"]).plan()
    assert [each for each in plan.warnings if f"data.path names {other}" in each]
    # A study that was run goes on from the lab, wherever its file was.
    recorded = StudyFolder(places.lab, "mine")
    assert json.loads(recorded.plan_file.read_bytes())["reaches"] == []


# ------------------------------------------------------------------ credentials


@dataclass
class Heard:
    """A server that hears who asks, and answers nobody."""

    url: str
    authorizations: list[str | None]


@pytest.fixture
def server() -> Iterator[Heard]:
    heard: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_error(404)

        do_GET = do_POST  # noqa: N815 - the name is the library's

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield Heard(f"http://127.0.0.1:{running.server_port}", heard)
        running.shutdown()


def test_a_token_goes_where_the_user_says_and_nowhere_else(
    places: Places, server: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places.own / "text.txt").write_text(TEXT)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hidden")
    track = f"track: {{uri: '{server.url}'}}\n"
    for call in ("plan", "run"):
        with pytest.raises(BadInput) as error:
            getattr(places.study("text.txt", track), call)()
        said = f"MLFLOW_TRACKING_TOKEN would be sent to {server.url}, which only the study file names"
        assert said in str(error.value) and "foreign.yaml:8:14" in str(error.value)
        assert f"allowed: MLFLOW_TRACKING_URI={server.url}, or -o track.uri={server.url}" in str(error.value)
    assert server.authorizations == []
    # A study of a lab from elsewhere has its address from its records.
    with pytest.raises(BadInput, match="only the study file names"):
        count_studies(places.lab, tracking_uri(places.lab, server.url))
    assert server.authorizations == []
    for named in ("environment", "command line"):
        if named == "environment":
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.url}/")
        else:
            monkeypatch.delenv("MLFLOW_TRACKING_URI")
            places.study("text.txt", track, f"track.uri={server.url}")
        with pytest.raises(TrackingUnavailable):
            count_studies(places.lab, tracking_uri(places.lab, server.url))
        assert set(server.authorizations) == {"Bearer hidden"}
        server.authorizations.clear()


@pytest.mark.parametrize(
    ("scheme", "name"), [(scheme, name) for scheme, names in CREDENTIALS.items() for name in names]
)
def test_whatever_is_sent_to_any_address_is_a_credential(
    scheme: str, name: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{scheme}://host/place"
    assert tracking_uri(places.lab, address) == address
    monkeypatch.setenv(name, "hidden")
    with pytest.raises(BadInput, match=f"^{name} would be sent to {address}") as error:
        tracking_uri(places.lab, address)
    assert "hidden" not in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert tracking_uri(places.lab, address) == address


def test_mlflow_s_own_file_of_credentials_counts(places: Places, tmp_path: Path) -> None:
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text("[mlflow]\nmlflow_tracking_username = me\n")
    with pytest.raises(BadInput, match=r"\.mlflow/credentials would be sent to https://host, which only"):
        tracking_uri(places.lab, "https://host")
    assert tracking_uri(places.lab, "postgresql://host/db") == "postgresql://host/db"


def test_without_credentials_the_plan_shows_the_address(places: Places) -> None:
    (places.own / "text.txt").write_text(TEXT)
    plan = places.study("text.txt", "track: {uri: 'http://127.0.0.1:9'}\n").plan()
    assert plan.reaches == ["http://127.0.0.1:9"] and plan.warnings == []


# ------------------------------------------------------------------ passwords


def test_a_study_with_a_password_is_refused_without_repeating_it(places: Places) -> None:
    (places.own / "text.txt").write_text(TEXT)
    for address in (
        "http://user:hid/d#en@host",
        "postgresql://user:hid?d@en@host/db",
        "postgresql://host/db?password=hidden",
    ):
        for study in (
            places.study("text.txt", f"track: {{uri: '{address}'}}\n"),
            places.study("text.txt", "", f"track.uri='{address}'"),
        ):
            with pytest.raises(BadInput) as error:
                study.run()
            assert "track.uri contains a password, which the lab and tracking would store" in str(error.value)
            assert "hid" not in str(error.value) and "en@" not in str(error.value)
            assert not list(places.lab.iterdir())


def test_the_environment_gives_the_password_of_a_study_s_address(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hidden@host:5000/")
    assert tracking_uri(places.lab, "http://host:5000") == "http://user:hidden@host:5000/"
    assert tracking_uri(places.lab, "http://other:5000") == "http://other:5000"


@pytest.mark.parametrize("uri", ["http://user:hid/den@host", "http://user:hid#den@host", "http://[hid:en"])
def test_an_address_that_is_not_escaped_is_refused(
    uri: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(BadInput, match="has unescaped characters; allowed: %2F for /") as error:
        tracking_uri(places.lab)
    assert "hid/" not in str(error.value) and "den" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://user:hid@den@host/db", "postgresql://host/db is not a PostgreSQL address; allowed: postgresql://USER:"),
        ("mysql://user:hid/den@host/db", "mysql://host/db is not a PostgreSQL address"),
        ("postgresql://user:hid:den@host:port/db", "its value is not a PostgreSQL address"),
        ("postgresql://user:hid/den@127.0.0.1:9/db?password=hid#den", "127.0.0.1:9/db?password=*** does not answer"),
    ],
)  # fmt: skip
def test_a_storage_s_password_is_not_said(
    url: str, said: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    with pytest.raises(BadInput) as error:
        choose_storage(StudyFolder(places.lab, "foreign"))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert "hid" not in str(error.value) and "den" not in str(error.value)
