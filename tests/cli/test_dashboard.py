"""`sweeplab dashboard`: whom its server answers, and the page in a real browser while a study runs."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import strangers
from chromium import chromium_page
from cli.conftest import STUDY
from terminal import PROGRAM
from tracked import Tracked

import sweeplab
from sweeplab.api import write_report
from sweeplab.errors import BadInput
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import read_notes
from sweeplab.report.live import Follower, give

# Prints what the server answers to each address.
ASK = """
import sys, urllib.error, urllib.request
for address in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(address, timeout=300).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@contextmanager
def served(*arguments):
    """Run the command, yield the page's address, and end it as Ctrl-C does."""
    command = [*PROGRAM, "dashboard", *map(str, arguments), "--json", "--no-open"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[-1] == "}\n", process.stderr.read()
            yield json.loads("".join(lines))["page"]
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, "", "ended\n")


def ask(url, content=None, **headers):
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        url, data, {name.capitalize(): value for name, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_it_answers_this_machine_at_its_address_alone(finished):
    with served("tiny", "--lab", finished.lab) as url:
        place = urlsplit(url)
        assert place.hostname == "127.0.0.1" and len(place.path) > 30
        root, order = f"http://{place.netloc}", url.replace("/?", "/order?")
        stop, script = {"order": "stop"}, url.replace("/?", "/live.js?")
        assert ask(url)[0] == ask(script)[0] == 200
        others = (
            "",
            "/?study=tiny",
            f"{place.path[:-2]}/",
            f"/{place.path}",
            "/events?study=tiny",
            "/studies",
        )
        for refused in others:
            assert ask(f"{root}{refused}")[0] == 403, refused
        assert ask(script, **{"service-worker": "script"})[0] == 403
        another = strangers.python(ASK, root, f"{root}/events?study=tiny", f"{root}/order")
        assert another.stdout.split() == ["403"] * 3, another.stderr
        assert (
            ask(url, host="evil.example")[0]
            == ask(url, host=f"evil.example:{place.port}")[0]
            == 403
        )
        assert ask(order, stop, origin="http://evil.example")[0] == 403
        code, said = ask(order, stop)
        assert code == 400 and "study tiny is not running" in json.loads(said)["error"]
        for wrong in (
            {"order": "rm"},
            {"order": "stop trial"},
            {"order": "enqueue", "values": "x=1"},
        ):
            assert ask(order, wrong)[0] == 400
        unknown = ask(order.replace("study=tiny", "study=tny"), stop)
        assert unknown[0] == 400 and "did you mean 'tiny'" in unknown[1]


@pytest.mark.slow
def test_odd_requests_are_refused(finished):
    digits, deep = b"9" * 5000, b"[" * 50_000
    odd = [
        b"[]",
        b"null",
        b"{",
        b"\xff",
        deep,
        b'{"order": %s}' % digits,
        b'{"order": "\\ud800"}',
    ]
    for trial in (b"1e999", b"9" * 30, b'"x"', b"{}", b'"%s"' % digits, b"NaN"):
        odd.append(b'{"order": "stop trial", "cell": "n_embd=8", "trial": %s}' % trial)
    for value in (b"1e999", b"[]", b'"learning_rate=0x%s"' % (b"f" * 4000), b'"\\u0000"'):
        odd += [
            b'{"order": "enqueue", "values": %s}' % value,
            b'{"order": "extend", "time": %s}' % value,
        ]
    odd.append(b'{"order": "stop", "more": "%s"}' % (b"a" * 3_000_000))
    with served("tiny", "--lab", finished.lab) as url:
        for content in odd:
            request = urllib.request.Request(url.replace("/?", "/order?"), content)
            with pytest.raises((urllib.error.URLError, ConnectionError)) as refused:
                urllib.request.urlopen(request, timeout=300)
            # A server that reads no further may close the connection before the whole request is sent.
            if isinstance(refused.value, urllib.error.HTTPError):
                said = json.loads(refused.value.read())["error"]
                assert refused.value.code == 400 and "\n" not in said, (content[:60], said)
            else:
                assert len(content) > 1_000_000
        address = url.partition("?")[0]
        for path, content in (
            ("events", None),
            ("order", {"order": "stop"}),
            ("mlflow", {"order": "stop"}),
        ):
            for name in ("x" * 50_000, "../tiny", "%00"):
                code, said = ask(f"{address}{path}?study={name}", content)
                assert code == 400 and len(json.loads(said)["error"]) < 4000, (
                    path,
                    name[:60],
                    said[:300],
                )
        assert ask(url)[0] == 200


def test_a_look_tells_all_and_the_next_one_only_what_is_new(finished):
    follower = Follower(StudyFolder(finished.lab, "tiny"))
    first, second = follower.look(), follower.look()
    assert (first["counted"], first["total"], first["state"], first["is_run"]) == (
        4,
        4,
        "finished",
        False,
    )
    assert (
        len(first["runs"]) == len(first["points"]) == 4
        and not second["runs"]
        and not second["points"]
    )
    assert [at for at, _ in first["points"]["n_embd=8/0/0"]] == [0, 10, 20]
    study = sweeplab.open_study("tiny", finished.lab)
    best = next(row for row in first["runs"] if row["key"] == first["best"])
    assert (best["cell"], best["trial"]) == (study.best.cell, study.best.trial)
    assert first["headline"] == study.show().as_dict() and first["states"] == {"complete": 4}


@pytest.mark.browser
def test_a_study_that_runs_is_seen_and_steered(folder, tmp_path):
    more = "max_iters: 100000, compile: false, patience: null, save_interval: 500"
    long = STUDY.replace("max_iters: 20", more).replace(
        "eval_interval: 10", "eval_interval: 100"
    )
    (folder / "tiny.yaml").write_text(long)
    run = subprocess.Popen([*PROGRAM, "run", "tiny.yaml", "--quiet"])
    try:
        while not [*folder.glob("lab/studies/tiny/runs/*/*/points.jsonl")]:
            assert run.poll() is None
        with chromium_page(tmp_path / "profile", 1400, 1100) as page, served("tiny") as url:

            def click(button, then):
                page.read(f"document.querySelector('{button}').click()")
                page.wait_for(then)

            def phase(name):
                return f"at('phase').textContent == '{name}'"

            page.open(url)
            page.wait_for(f"document.readyState == 'complete' && {phase('running')}")
            page.wait_for("document.querySelectorAll('#trials tr').length > 1")
            points = "[...curves.values()].reduce((n, each) => n + each.length, 0)"
            seen = page.read(points)
            page.wait_for(f"{points} > {seen}")  # they come by themselves
            page.wait_for(
                "document.querySelectorAll('#curves .scatterlayer .trace path.js-line').length > 0"
            )
            assert page.read("at('headline').textContent").startswith(
                "tiny   running: 0 of 4 trials ("
            )
            heads = page.read(
                "[...document.querySelectorAll('#trials th')].map((each) => each.textContent)"
            )
            assert heads[:2] == ["learning_rate", "loss"], "what is searched comes first"
            assert page.read("at('curves')._fullLayout.xaxis.range[0]") == 0, (
                "nothing lies before the start"
            )
            for asked, is_some in (
                ("n_layer=7", False),
                ("loss<0", False),
                ("loss>0", True),
                ("", True),
            ):
                page.read(f"at('filter').value = '{asked}'; at('filter').oninput()")
                assert (
                    page.read("document.querySelectorAll('#trials tbody tr').length > 0")
                    == is_some
                ), asked
            assert "Awaited" in page.read("at('progress').textContent"), "no empty axes"
            if picture := os.environ.get("SWEEPLAB_SCREENSHOTS"):
                page.screenshot(Path(picture) / "dashboard.png")

            buttons = "[...document.querySelectorAll('#trials button')]"
            page.read(f"{buttons}.find((each) => each.textContent === 'stop').click()")
            page.wait_for("at('states').textContent.includes('1 stopped')")
            page.read("document.querySelector('[name=trials_per_cell]').value = '3'")
            click(
                "form[data-order=extend] button",
                "at('headline').textContent.includes('of 6 trials')",
            )
            assert "undo: sweeplab extend tiny" in page.read("at('said').textContent")
            page.read(
                "document.querySelector('[name=values]').value = 'learning_rate=2e-3'; counts_enqueued()"
            )
            assert page.read("at('enqueue').textContent") == "enqueue 2 trials", "one a cell"
            click(
                "form[data-order=enqueue] button",
                "at('said').textContent.includes('2 trials enqueued')",
            )
            click("button[data-order=pause]", phase("paused"))
            assert page.read("!at('headline').textContent.includes(' left')"), (
                "nothing counts down"
            )
            click("button[data-order=resume]", phase("running"))
            click("button[data-order=stop]", phase("interrupted"))
            assert page.read("document.querySelector('button[data-order=stop]').disabled")
            assert not page.errors
            hosts = {urlsplit(each).netloc for each in page.requests if each.startswith("http")}
            assert hosts == {urlsplit(url).netloc}
        assert run.wait(timeout=300) == 130
    finally:
        run.kill()
        run.wait()


@pytest.mark.slow
def test_a_note_is_kept_and_shown_everywhere(lab):
    study = StudyFolder(lab, "tiny")
    follower = Follower(study)
    (first, *_) = follower.look()["runs"]
    place = {"cell": first["cell"], "trial": first["trial"]}
    give(study, "note", place | {"text": " <b>odd</b> "})
    kept = "<b>odd</b>"
    assert read_notes(study) == {f"{first['cell']}/{first['trial']}": kept}
    assert {row["note"] for row in follower.look()["runs"]} == {kept}
    run_id = study.run(*place.values(), first["seed"]).tracked_id
    assert Tracked(lab, "tiny").client.get_run(run_id).data.tags["mlflow.note.content"] == kept
    page = write_report("sweep", lab, ["tiny"]).read_text(encoding="utf-8")
    assert "\\u003cb\\u003eodd" in page and "<b>odd" not in page
    for wrong in ({"trial": 99}, {"cell": "n_embd=9"}, {"text": "x" * 9000}):
        with pytest.raises(BadInput):
            give(study, "note", {"text": ""} | place | wrong)
    give(study, "note", place | {"text": ""})
    assert read_notes(study) == {}


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_no_column_is_cut(width, finished, tmp_path):
    with (
        served("tiny", "--lab", finished.lab) as url,
        chromium_page(tmp_path / "profile", width, 900) as page,
    ):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        page._call("Emulation.setDeviceMetricsOverride", **screen)
        page.open(url)
        page.wait_for(
            "document.readyState == 'complete' && at('phase').textContent == 'finished'"
        )
        # Two a cell.
        page.wait_for("document.querySelectorAll('#progress .scatterlayer .trace').length == 4")
        assert page.read("document.documentElement.scrollWidth") == width
        cells = "[...document.querySelectorAll('#trials td, #cells td')].map((each) => each.getBoundingClientRect())"
        assert page.read(
            f"{cells}.every((box) => box.left >= 0 && box.right <= {width} && box.width > 0)"
        )
        assert page.read("at('headline').textContent").startswith(
            "tiny   finished: 4 of 4 trials\nbest   val_loss "
        )
        assert not page.errors
