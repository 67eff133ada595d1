import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from sweeplab.data.corpora import CORPORA, Corpus, Texts, download
from sweeplab.data.corpora.base import user_files
from sweeplab.data.readers import content
from sweeplab.errors import BadInput

ALWAYS_THERE = ("python-docs", "python-source", "python-docstrings", "copy", "reverse", "sort", "addition")

# Ends the process if anything looks for the network, then prints the digests of what was read.
READ_OFFLINE = """
import os, sys
def refuse(event, arguments):
    if event.startswith("socket."):
        os._exit(9)
sys.addaudithook(refuse)
from sweeplab.data.corpora import CORPORA
for name in sys.argv[1:]:
    print(CORPORA[name].texts(CORPORA[name].files()).digest)
"""


@cache
def read(name: str, path: str | None = None) -> Texts:
    return CORPORA[name].texts(CORPORA[name].files(path))


def text_of(name: str, path: str | None = None) -> str:
    corpus = CORPORA[name]
    assert isinstance(corpus, Corpus)
    return "\n\n".join(corpus.documents(corpus.files(path)))


@pytest.fixture(params=CORPORA)
def corpus_and_path(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    name: str = request.param
    if name == "tinyshakespeare":
        return name, request.getfixturevalue("tinyshakespeare")
    if name == "text":
        file = tmp_path / "some.txt"
        file.write_text("a text of mine\n")
        return name, str(file)
    if name == "pairs":
        file = tmp_path / "some.tsv"
        file.write_text("one\tun\ntwo\tdeux\nthree\ttrois\n")
        return name, str(file)
    if name == "labels":
        file = tmp_path / "some.tsv"
        rows = (f"film {n} is {('dull', 'fine')[n % 2]}\t{('bad', 'good')[n % 2]}\n" for n in range(40))
        file.write_text("".join(["text\tlabel\n", *rows]))
        return name, str(file)
    return name, None


class TestCorpusContract:
    """What any registered corpus does."""

    @pytest.mark.slow
    @pytest.mark.parametrize("corpus_and_path", CORPORA, indirect=True)
    def test_has_texts_to_train_on_and_others_to_validate_and_to_test_with(
        self, corpus_and_path: tuple[str, str | None]
    ) -> None:
        name, path = corpus_and_path
        found = read(name, path)
        assert found.kind == CORPORA[name].kind
        splits = [found.train, found.val, found.test]
        assert len(set("".join(found.train))) > 1 and all(map("".join, splits))
        assert found.n_characters == sum(len(text) for split in splits for text in split)
        assert max(found.overlaps) < 0.05, "what is shipped needs no warning"
        sizes = [sum(map(len, split)) / found.n_characters for split in splits]
        if found.of_pairs:
            assert all(text for split in splits for text in split)
            sources = [set(split[::2]) for split in splits]
            assert sum(map(len, sources)) == len(set.union(*sources))
            assert found.val_bytes == len("".join(found.val[1::2]).encode())
        elif name != "text":
            assert sizes == pytest.approx([0.8, 0.1, 0.1], abs=0.02)

    def test_names_the_files_it_depends_on(self, corpus_and_path: tuple[str, str | None]) -> None:
        name, path = corpus_and_path
        files = CORPORA[name].files(path)
        assert files
        assert all(file.is_absolute() and file.is_file() for file in files)
        assert len(set(files)) == len(files)


@pytest.mark.slow
def test_python_corpora_are_there_offline_and_the_same_in_every_process() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", READ_OFFLINE, *ALWAYS_THERE], capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [read(name).digest for name in ALWAYS_THERE]


def test_tinyshakespeare_is_the_published_text(tinyshakespeare: str) -> None:
    text = text_of("tinyshakespeare", tinyshakespeare)
    assert (len(text), len(set(text))) == (1_115_394, 65)


def test_tinyshakespeare_offline_says_in_one_line_how_to_provide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWEEPLAB_TINYSHAKESPEARE", raising=False)
    monkeypatch.setenv("SWEEPLAB_CACHE", str(tmp_path))
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    # Port 1 answers nobody: every request through this proxy fails as it does without a network.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(BadInput) as error:
        text_of("tinyshakespeare")
    assert "\n" not in str(error.value)
    assert "SWEEPLAB_TINYSHAKESPEARE" in str(error.value)
    assert "https://raw.githubusercontent.com/karpathy/char-rnn/" in str(error.value)
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == []


def test_text_has_the_files_of_a_glob_as_documents_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/deep/er/y.txt", "c.md", ".hidden/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name * 2)
    (tmp_path / "blank.txt").write_text(" \n")
    assert text_of("text", f"{tmp_path}/**/*.txt").split() == [
        "a/deep/er/y.txt" * 2,
        "a/z.txt" * 2,
        "b.txt" * 2,
    ]
    assert text_of("text", f"{tmp_path}/[bc].*") == "b.txtb.txt\n\nc.mdc.md"


def test_a_glob_goes_round_no_circle_and_has_an_end(tmp_path: Path, monkeypatch) -> None:
    for name in ("a.txt", "in/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for link in ("round", "again"):
        (tmp_path / "in" / link).symlink_to(tmp_path)
    found = [str(file.relative_to(tmp_path)) for file in user_files(f"{tmp_path}/**/*.txt")]
    assert found == ["a.txt", "in/b.txt"]
    assert [file.name for file in user_files(f"{tmp_path}/**")] == ["a.txt", "b.txt"]
    assert [file.name for file in user_files(f"{tmp_path}/in/round/**/a.txt")] == ["a.txt"], (
        "a link that is named"
    )
    monkeypatch.setattr(content, "MOST_FILES", 1)
    with pytest.raises(BadInput, match=r"more than 1 files match .*/\*\*; allowed: the files of one folder"):
        user_files(f"{tmp_path}/**")


CONTENT = b"To be, or not to be\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """A loopback server that counts its requests; `/dripping` sends a byte every 50 ms, without end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.n_requests = 0
        self.closing = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.n_requests += 1
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/file":
            self.wfile.write(CONTENT)
        elif self.path == "/cut":
            self.wfile.write(CONTENT[:-1])
        while self.path == "/dripping" and not self.server.closing.wait(0.05):
            try:
                self.wfile.write(b".")
            except OSError:
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.closing.set()
        running.shutdown()
        thread.join()


def left_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(".lock"))


def test_download_fetches_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    for _ in range(2):
        assert download(server.url("/file"), target, SHA256) == target
        assert target.read_bytes() == CONTENT
    assert server.n_requests == 1
    assert left_in(target.parent) == ["file.txt"]


def test_download_fetches_once_for_all_who_ask_together(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: download(server.url("/file"), target, SHA256), range(8)))
    assert server.n_requests == 1


@pytest.mark.parametrize(
    ("path", "limits", "says"),
    [
        ("/cut", {}, f"should be {SHA256}"),
        ("/file", {"largest_bytes": len(CONTENT) - 1}, "larger than 19,999 bytes"),
        ("/dripping", {"timeout_seconds": 0.3}, "takes longer than 0.3s"),
        ("/missing", {}, "404"),
    ],
)
def test_download_refuses_the_wrong_thing_and_leaves_nothing(
    server: Server, tmp_path: Path, path: str, limits: dict[str, float], says: str
) -> None:
    with pytest.raises(OSError, match=says):
        download(server.url(path), tmp_path / "file.txt", SHA256, **limits)
    assert left_in(tmp_path) == []
