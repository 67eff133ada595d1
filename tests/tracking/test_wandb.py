"""The mirror in Weights & Biases: the real package, offline, and what it wrote read back from its own files."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

import sweeplab
from sweeplab import permissions, tracking
from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.file.resolve import preset
from sweeplab.study.file.template import study_text
from sweeplab.sweep.planning import make_plan
from sweeplab.tracking import open_mirrors

STUDIES = Path(sweeplab.__file__).parents[1] / "studies"

pytest.importorskip("wandb", reason="wandb, an extra, is not installed")


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "studies" / "planets"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def make(study):
    def make():
        (mirror,) = open_mirrors({"wandb_project": "nightly"}, study)
        mirror.open({})
        return mirror

    return make


def records(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in logged(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            yield record


def logged(content):
    """Yield the records of a file in LevelDB's log format: blocks of 32 KB, in them pieces with a header of 7 bytes."""
    at, whole = 7, b""  # W&B's own header
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


def shown(folder):
    """Return the runs, the histories of all metrics by step, and the summary."""
    runs, history, summary = [], defaultdict(dict), {}
    for record in records(folder):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            runs.append(record.run)
        elif kind == "history":
            for item in record.history.item:
                name = item.key or item.nested_key[0]
                history[name][record.history.step.num] = json.loads(item.value_json)
        elif kind == "summary":
            summary |= {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.summary.update
            }
    return runs, history, summary


@pytest.mark.slow
def test_a_run_is_shown_with_all_its_numbers_when_it_has_ended(make, study, writer):
    mirror, folder = (
        make(),
        writer.begin(study / "runs/n_layer=1/7-3", "n_layer=1/7/3", grid=["n_layer"]),
    )
    writer.append(folder, writer.lines(0, 10, 20, 30))
    mirror.ship(folder)
    assert not list(records(study)), "a run under way is not sent yet"
    writer.end(folder, "pruned")
    mirror.ship(folder)
    mirror.close({"state": "complete"})
    runs, history, summary = shown(study)
    assert {
        (run.project, run.run_group, run.job_type, run.display_name, *run.tags) for run in runs
    } == {("nightly", "planets", "n_layer=1", "n_layer=1 #7 seed 3", "pruned")}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert {
        "n_embd": writer.values["n_embd"],
        "cell": "n_layer=1",
        "trial": 7,
        "seed": 3,
    }.items() <= config.items()
    assert history["val_loss"] == {0: 4.0, 10: 3.875, 20: 3.75, 30: 3.625}
    assert history["train_tokens"] == {0: 0, 10: 640, 20: 1280, 30: 1920}
    assert set(history["train_loss"]) == {10, 20, 30}
    assert {
        "state": "pruned",
        "n_params": 1234,
        "best_val_loss": 3.8,
    }.items() <= summary.items()


@pytest.mark.slow
def test_nothing_is_sent_twice_and_a_cut_sending_goes_on_as_the_same_run(make, study, writer):
    folder = writer.begin(study / "runs/n_layer=1/0-0", "n_layer=1/0/0")
    writer.append(folder, writer.lines(0, 10))
    writer.end(folder, iteration=10)
    for mirror in (make(), make()):
        mirror.ship(folder)
        mirror.ship(folder)
    sent = json.loads((folder / "wandb.json").read_text())
    assert len(list(study.glob("wandb/offline-run-*"))) == 1
    # Killed before it could say so.
    (folder / "wandb.json").write_text(json.dumps({**sent, "sent": False}))
    make().ship(folder)
    assert {run.run_id for run in shown(study)[0]} == {sent["id"]}


def test_what_init_and_the_table_write_is_sent_nowhere(study):
    files = [study_text("mine"), study_text("mine", values=preset("table").values)]
    for text in [*files, (STUDIES / "table.yaml").read_text()]:
        assert open_mirrors(read_study(study / "mine.yaml", text=text).fixed, study) == []


def test_a_plan_says_what_is_sent_where(study, monkeypatch):
    def mirror(**fixed):
        data, fixed = {"corpus": "copy", "tokenizer": "char"}, {"dtype": "float32"} | fixed
        return make_plan(read_plain({"name": "tiny", "data": data, "fixed": fixed}), study)[
            0
        ].mirror

    assert mirror() == mirror(wandb_project=None) == ""
    assert mirror(wandb_project="nightly") == "mirror: Weights & Biases, project nightly"
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert mirror(wandb_project="nightly").endswith(
        "nightly, but wandb is not installed: nothing is sent"
    )


def test_runs_are_sent_to_the_login_s_address_at_the_user_s_word_alone(
    study, tmp_path, writer, monkeypatch
):
    """Neither the study, whose folder has settings of its own, nor a login allows what the study wishes."""
    monkeypatch.setattr(permissions, "_named", set())
    for name, address in (
        (study / "wandb", "http://127.0.0.1:8"),
        (tmp_path / "login", "http://127.0.0.1:9"),
    ):
        name.mkdir()
        (name / "settings").write_text(f"[default]\nbase_url = {address}\n")
    for name, value in (
        ("CONFIG_DIR", str(tmp_path / "login")),
        ("API_KEY", "0" * 40),
        ("MODE", "online"),
    ):
        monkeypatch.setenv(f"WANDB_{name}", value)
    (mirror,) = open_mirrors({"wandb_project": "theirs"}, study)
    folder = writer.begin(study / "runs/n_layer=1/0-0", "n_layer=1/0/0")
    writer.end(folder)
    with pytest.raises(
        BadInput,
        match=r"names http://127\.0\.0\.1:9, which you have not",
    ):
        mirror.ship(folder)
    assert permissions.mirror_address() == "http://127.0.0.1:9"
    monkeypatch.setenv("WANDB_MODE", "offline")
    (study / "wandb").rename(tmp_path / "other")
    (study / "wandb").symlink_to(tmp_path / "other")
    with pytest.raises(TrackingUnavailable, match="is a link, which is not followed"):
        mirror.ship(folder)
