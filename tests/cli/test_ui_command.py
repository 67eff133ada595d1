"""`sweeplab ui`: the links that it prints, the server behind them, and what it refuses."""

import http.server
import json
import signal
import socket
import subprocess
import threading
import urllib.request

import psutil
import pytest
from chromium import chromium_page
from terminal import PROGRAM, heeds_hangups, wait_until


def start(*arguments, verb="ui"):
    command = [*PROGRAM, verb, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heeds_hangups
    )


def printed(process):
    """Return the JSON that a server's start prints; the process goes on."""
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            return json.loads(text)
    raise AssertionError(process.stderr.read())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_lives_as_long_as_the_command(number, finished):
    with start("tiny", "--lab", finished.lab, "--json") as process:
        said = printed(process)
        server, links = said["server"], said["studies"]["tiny"]
        assert links.keys() == {"charts", "table", "study"}
        assert all(link.startswith(f"{server}#/experiments/") for link in links.values())
        with urllib.request.urlopen(f"{server}/", timeout=120) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "ended\n")
    assert not psutil.pid_exists(said["pid"])


@pytest.mark.slow
def test_a_server_ends_with_a_command_that_is_killed(finished):
    with start("tiny", "--lab", finished.lab, "--json") as process:
        server = psutil.Process(printed(process)["pid"])
        process.kill()
    psutil.wait_procs([server], timeout=120)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


# A page of an earlier server at a port, which from then on answers in the place of later ones.
LEFT = {
    "/": "<script>navigator.serviceWorker.register('/left.js').then(async (it) => {"
    "await navigator.serviceWorker.ready; document.title = 'left' })</script>",
    "/left.js": "oninstall = () => skipWaiting(); onactivate = (event) => event.waitUntil(clients.claim()); onfetch = "
    "(event) => event.respondWith(new Response('taken', {headers: {'Content-Type': 'text/html'}}))",
}


class Earlier(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header(
            "Content-Type", "text/javascript" if self.path.endswith("js") else "text/html"
        )
        self.end_headers()
        self.wfile.write(LEFT[self.path].encode())

    def log_message(self, *_):
        pass


@pytest.mark.browser
@pytest.mark.parametrize("verb", ["ui", "dashboard"])
def test_what_another_server_has_left_in_the_browser_is_not_used(verb, finished, tmp_path):
    """Whoever held a port that is known in advance, such as another user, would answer for our pages later."""
    with chromium_page(tmp_path / "profile") as page:
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Earlier) as earlier:
            threading.Thread(target=earlier.serve_forever, daemon=True).start()
            page.open(f"http://127.0.0.1:{earlier.server_port}/")
            page.wait_for("document.title == 'left'")
            earlier.shutdown()
        for port, shown in ((earlier.server_port, "taken"), (None, "tiny")):
            fixed = ["--port", str(port)] if port else []
            with start("tiny", "--lab", finished.lab, "--json", *fixed, verb=verb) as process:
                try:
                    said = printed(process)
                    page.open(said.get("page") or said["studies"]["tiny"]["table"])
                    page.wait_for(f"document.body?.innerText.includes('{shown}')")
                finally:
                    process.send_signal(signal.SIGINT)


# A browser that notes its arguments, and what everybody may read of the files among them.
BROWSER = """#!/bin/sh
tr '\\0' ' ' <"/proc/$$/cmdline" >{0}.new
stat -c ' %a' "$(echo "$1" | sed 's,file://,,; s/%20/ /g')" >>{0}.new
mv {0}.new {0}
"""


@pytest.mark.browser
@pytest.mark.parametrize("verb", ["ui", "dashboard"])
def test_no_argument_of_a_browser_has_the_address_and_the_page_opens(
    verb, finished, tmp_path, monkeypatch
):
    browser, noted = tmp_path / "browser", tmp_path / "noted"
    browser.write_text(BROWSER.format(noted))
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with start("tiny", "--lab", finished.lab, "--json", "--open", verb=verb) as process:
        try:
            said = printed(process)
            address = said.get("server") or said["page"].partition("/?")[0]
            secret = address.rpartition("/")[2]
            wait_until(noted.exists)
            *_, file, mode = noted.read_text().split()
            assert len(secret) == 32 and secret not in noted.read_text() and mode == "600"
            with chromium_page(tmp_path / "profile") as page:
                page.open(file)
                page.wait_for("document.body?.innerText.includes('tiny')")
                assert page.read("location.href").startswith(f"{address}/")
        finally:
            process.send_signal(signal.SIGINT)
    assert not [*finished.lab.glob("open-*")]


def test_a_tracking_server_that_is_down(cli, finished, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        for name in ("tiny",), ():
            said = cli("ui", *name, "--lab", finished.lab, "--no-open")
            assert (said.code, said.out) == (2, "")
            assert f"error: {uri}: no answer (Connection refused); start it" in said.err
