"""A study file as foreign input: what it alone names is not read, not written, and not sent what is the user's."""

import http.server
import json
import os
import pickle
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import optuna
import pytest
import strangers

from sweeplab import load_study, permissions
from sweeplab.errors import BadInput, DamagedFile, TrackingUnavailable
from sweeplab.files import database_url, read_own
from sweeplab.lab.events import StudyNotice
from sweeplab.lab.showing import show_study
from sweeplab.lab.storage import VARIABLE, choose_storage
from sweeplab.records.folders import StudyFolder, read_service
from sweeplab.runs.models import models_of
from sweeplab.sweep.planning import check_reach
from sweeplab.sweep.trials.storage import TrialStorage
from sweeplab.tracking.connection import check_location, tracking_uri
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

    def __post_init__(self):
        for folder in (self.own, self.secret.parent, self.lab):
            folder.mkdir()
        self.secret.write_text(TEXT)
        self.file = self.own / "foreign.yaml"

    def study(self, path, more="", *overrides):
        self.file.write_text(STUDY.replace("PATH", path) + more)
        return load_study(self.file, lab=self.lab, overrides=overrides)


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(permissions, "_named", set())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Places(tmp_path / "own", tmp_path / "home" / "secret.txt", tmp_path / "lab")


def refused(study, *parts):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["{home}/secret.txt", "../home/secret.txt", "{home}/*.txt", "{own}/*.txt"]
)
def test_a_file_of_the_user_s_is_read_at_the_user_s_word_only(path, places):
    (places.own / "link.txt").symlink_to(places.secret)
    path = path.format(home=places.secret.parent, own=places.own)
    study = places.study(path)
    place = f"{places.file}:2:39: data.path names {places.secret}, outside of this file's folder and of the lab"
    refused(study, place, "-o ", "by which you allow it")
    assert study.plan().reaches == [str(places.secret)]
    allowed = places.study(path, "", f"data.path={path}").plan()
    assert allowed.reaches == [str(places.secret)] and not [
        each for each in allowed.warnings if "cannot be run" in each
    ]


def test_a_database_needs_the_word_too(places):
    (places.own / "text.txt").write_text(TEXT)
    database = places.secret.with_name("other.db")
    study = places.study("text.txt", f"track: {{uri: 'sqlite:///{database}'}}\n")
    refused(study, f"track.uri names {database}", f"-o track.uri=sqlite:///{database}")


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_the_word_is_given_once(places):
    heard = []
    study = places.study(str(places.secret), "", f"data.path={places.secret}")
    assert study.run(lambda event, progress: heard.append(event)).status == "complete"
    notices = [event.message for event in heard if isinstance(event, StudyNotice)]
    assert notices == [f"outside of its folder and the lab: {places.secret}"]
    assert show_study(study.folder)["reaches"] == [str(places.secret)]
    again = places.study(str(places.secret)).plan()
    assert not [each for each in again.warnings if "cannot be run" in each]
    # A link that has taken the place of a file beside the study is another file.
    other = places.secret.with_name("other.txt")
    other.write_text(TEXT)
    (places.own / "text.txt").symlink_to(other)
    places.study("text.txt")
    plan = load_study(places.file, lab=places.lab, name="third").plan()
    assert [each for each in plan.warnings if f"data.path names {other}" in each]


def test_what_is_learned_from_a_file_goes_only_where_it_was_allowed_to_go(places):
    """A yes for a file and one for an address are none for sending the one to the other."""
    path, track = f"data.path={places.secret}", "track: {uri: 'http://127.0.0.1:9'}\n"
    check_reach(places.study(str(places.secret), "", path).spec, places.lab)
    check_reach(places.study(str(places.secret), "").spec, places.lab)
    (places.own / "text.txt").write_text(TEXT)
    check_reach(
        places.study("text.txt", track, "track.uri=http://127.0.0.1:9").spec, places.lab
    )
    with pytest.raises(BadInput, match=f"data.path names {places.secret}"):
        check_reach(places.study(str(places.secret), track).spec, places.lab)


@pytest.mark.parametrize(
    "planted",
    ["another's file", "another's folder", "writable", "link", "linked folder", "pipe"],
)
def test_a_file_that_another_user_may_have_written_is_not_followed(planted, tmp_path):
    """Such as the one by which Ray finds a cluster, in a folder of /tmp."""
    file = tmp_path / "ray" / "current"
    file.parent.mkdir(mode=0o777)
    file.write_text("127.0.0.1:9\n")
    assert read_own(file) == "127.0.0.1:9\n"
    match planted:
        case "writable":
            file.chmod(0o666)
        case "link":
            file.rename(tmp_path / "other")
            file.symlink_to(tmp_path / "other")
        case "linked folder":
            file.parent.rename(tmp_path / "other")
            file.parent.symlink_to(tmp_path / "other")
        case "pipe":
            file.unlink()
            os.mkfifo(file)
        case _ if not strangers.IS_ANOTHER:
            pytest.skip("only root can be another user")
        case _:
            os.chown(file if "file" in planted else file.parent, strangers.UID, strangers.UID)
    with pytest.raises(OSError) as error:
        read_own(file)
    assert error.value.filename in (str(file), str(file.parent)) and error.value.strerror


def test_what_only_counts_a_text_shows_and_writes_none_of_it(
    places, capsys, monkeypatch, tmp_path
):
    """A plan and a model's size need the text's: they read it without a word, into the user's own cache alone."""
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path / "cache"))
    text = "".join(f"{i} qzqzq {i * i % 97}\n" for i in range(400))
    places.secret.write_text(text)
    study = places.study(str(places.secret))
    plan = study.plan()
    assert plan.data.train_tokens and f"data.path names {places.secret}" in "".join(
        plan.warnings
    )
    (model,) = models_of(places.file)
    assert "qzqz" not in f"{plan.as_dict()}{model.as_dict()}{capsys.readouterr()}"
    assert not [file for file in places.lab.rglob("*") if file.is_file()]
    assert [file.name for file in places.own.iterdir()] == ["foreign.yaml"]
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_service_file_has_no_keys_that_lead_elsewhere(tmp_path):
    lines = [
        "[sweeplab]",
        "host=good.example",
        "port=5",
        "user=u",
        "password=p",
        "dbname=postgres",
    ]
    file = tmp_path / "service.conf"
    file.write_text("\n".join([*lines, "sslmode=verify-ca"]))
    assert read_service(file).host == "good.example"
    file.write_text("\n".join([*lines, "hostaddr=127.0.0.1"]))
    with pytest.raises(DamagedFile, match="it does not say how to connect"):
        read_service(file)


def test_a_database_that_only_a_file_names_keeps_its_files_in_the_lab(places):
    """Beside the study file, in the lab, and the lab's own by another path."""
    for uri in (
        f"sqlite:///{places.own}/evil.db",
        f"sqlite:///{places.lab}/other.db",
        f"sqlite:///{places.lab}/../lab/mlflow.db",
    ):
        for location in ("http://127.0.0.1:9/x", places.secret.parent.as_uri()):
            with pytest.raises(BadInput, match="leads out of"):
                check_location(places.lab, uri, location)
        check_location(places.lab, uri, (places.lab / "artifacts" / "1").as_uri())
    permissions.name_address(f"sqlite:///{places.own}/evil.db")
    check_location(places.lab, f"sqlite:///{places.own}/evil.db", places.secret.parent.as_uri())


def test_no_file_of_a_lab_gives_permission(places):
    """The lab, as the file, may come from somebody else: what it says was allowed was not."""
    other = StudyFolder(places.lab, "other")
    other.path.mkdir(parents=True)
    other.canonical_file.write_text("{}")
    other.plan_file.write_text(json.dumps({"reaches": [str(places.secret)]}))
    with pytest.raises(BadInput, match=f"data.path names {places.secret}"):
        check_reach(places.study(str(places.secret)).spec, places.lab)


# ------------------------------------------------------------------ passwords


@pytest.mark.parametrize(
    "address", ["http://user:hid/d#en@host", "postgresql://host/db?password=hidden"]
)
def test_a_study_with_a_password_is_refused_without_repeating_it(address, places):
    (places.own / "text.txt").write_text(TEXT)
    with pytest.raises(BadInput) as error:
        places.study("text.txt", "", f"track.uri='{address}'").run()
    assert "track.uri contains a password, which the lab and tracking would store" in str(
        error.value
    )
    assert "hid" not in str(error.value) and "en@" not in str(error.value)
    assert not list(places.lab.iterdir())


@pytest.mark.parametrize(
    "uri", ["http://user:hid/den@host", "http://user:hid#den@host", "http://[hid:en"]
)
def test_an_address_that_is_not_escaped_is_refused(uri, places, monkeypatch):
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
def test_a_storage_s_password_is_not_said(url, said, places, monkeypatch):
    monkeypatch.setenv(VARIABLE, url)
    if "does not answer" in said:
        pytest.importorskip(
            "psycopg", reason="psycopg, of the extra postgres, is not installed"
        )
    with pytest.raises(BadInput) as error:
        choose_storage(StudyFolder(places.lab, "foreign"))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert "hid" not in str(error.value) and "den" not in str(error.value)


# ------------------------------------------------------------------ code


class Runs:
    """An object whose pickle is a program: it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def asked(study, n=1):
    """Train trials of a study, and return what was sampled."""
    found = []
    for _ in range(n):
        trial = study.ask()
        x, y = (trial.suggest_float(name, -1.0, 1.0) for name in "xy")
        study.tell(trial, x**2 + (y - 0.5) ** 2)
        found.append(trial.params)
    return found


def plant(database, state):
    """Put an object in the place of the sampler's state, in every trial, with a signature."""
    known = {"cma:optimizer:0": pickle.dumps(state).hex(), "signed:cma:optimizer:0": "0" * 64}
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            "DELETE FROM trial_system_attributes WHERE key LIKE '%cma:optimizer:%'"
        )
        into = "INSERT INTO trial_system_attributes (trial_id, key, value_json) SELECT trial_id, ?, ? FROM trials"
        connection.executemany(into, [(key, json.dumps(value)) for key, value in known.items()])
        connection.commit()


def test_a_state_of_cma_es_is_unpickled_only_if_the_user_has_written_it(
    places, tmp_path, monkeypatch
):
    """Optuna keeps it as a pickle in the study's own database: code of whoever wrote the database."""
    file, marker = places.lab / "trials.db", tmp_path / "ran"

    def opened(storage):
        sampler = optuna.samplers.CmaEsSampler(
            seed=1, popsize=4, warn_independent_sampling=False
        )
        return optuna.create_study(
            storage=storage, sampler=sampler, study_name="s", load_if_exists=True
        )

    expected = asked(opened(None), 12)
    # The user's own state is used.
    assert asked(opened(TrialStorage(database_url(file))), 12) == expected

    def generations():
        trials = optuna.load_study(study_name="s", storage=database_url(file)).trials
        return [each.system_attrs.get("cma:generation", -1) for each in trials]

    reached = max(generations())
    assert reached >= 2
    plant(file, Runs(marker))
    asked(opened(TrialStorage(database_url(file))), 4)
    assert not marker.exists()
    assert generations()[-1] > reached  # computed again from the trials
    # Another user, who has another key, does not take over this user's state either, and gets as far.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    permissions._key.cache_clear()
    asked(opened(TrialStorage(database_url(file))), 8)
    assert not marker.exists() and generations()[-1] > reached
    # Optuna's own storage runs it: what is tested is a program.
    plant(file, Runs(marker))
    asked(opened(database_url(file)))
    assert marker.exists()
    permissions._key.cache_clear()


@dataclass
class Heard:
    """A server that hears who asks, and answers nobody."""

    url: str
    authorizations: list[str | None]


@pytest.fixture
def server():
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(self.headers.get("Authorization"))
            self.send_error(404)

        do_GET = do_POST  # noqa: N815 - the name is the library's

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield Heard(f"http://127.0.0.1:{running.server_port}", heard)
        running.shutdown()


def test_a_token_goes_where_the_user_says_and_nowhere_else(places, server, monkeypatch):
    (places.own / "text.txt").write_text(TEXT)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hidden")
    track = f"track: {{uri: '{server.url}'}}\n"
    said = f"track.uri names {server.url}, which you have not: it was not contacted"
    allowed = (
        f"allowed: MLFLOW_TRACKING_URI={server.url}, or -o track.uri={server.url} for a run"
    )
    refused(places.study("text.txt", track), "foreign.yaml:8:9", said, allowed)
    # A study of a lab from elsewhere has its address from its records.
    with pytest.raises(BadInput, match="which you have not: it was not contacted"):
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
