import hashlib
import http.server
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from terminal import captured

from sweeplab.data import formats
from sweeplab.data.corpora import CORPORA, Corpus, download
from sweeplab.data.formats import Reading, user_files
from sweeplab.errors import BadInput

ALWAYS_THERE = (
    "python-docs",
    "python-source",
    "python-docstrings",
    "copy",
    "reverse",
    "sort",
    "addition",
)

# Ends the process if anything looks for the network, then prints the digests of what was read.
READ_OFFLINE = """
import os, sys
def refuse(event, arguments):
    if event.startswith("socket."):
        os._exit(9)
sys.addaudithook(refuse)
from sweeplab.data.corpora import CORPORA
for name in sys.argv[1:]:
    print(CORPORA[name].texts({"train": CORPORA[name].files()}).digest)
"""


@cache
def read(name, path=None):
    return CORPORA[name].texts({"train": CORPORA[name].files(path)})


def text_of(name, path=None):
    corpus = CORPORA[name]
    assert isinstance(corpus, Corpus)
    return "\n\n".join(corpus.documents(corpus.files(path), Reading()))


# Files of the user for the corpora that need them.
OWN = {
    "text": "a text of mine\n",
    "pairs": "source\ttarget\none\tun\ntwo\tdeux\nthree\ttrois\n",
    "labels": "text\tlabel\n"
    + "".join(f"film {n} is {'dull' if n % 2 else 'fine'}\t{n % 2}\n" for n in range(40)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_any_corpus_has_files_and_texts_for_three_splits(name, tmp_path, request):
    path = None
    if name == "tinyshakespeare":
        path = request.getfixturevalue("tinyshakespeare")
    if name in OWN:
        file = tmp_path / ("some.txt" if name == "text" else "some.tsv")
        file.write_text(OWN[name])
        path = str(file)
    found, files = read(name, path), CORPORA[name].files(path)
    assert files and len({*files}) == len(files)
    assert all(file.is_absolute() and file.is_file() for file in files)
    assert found.kind == CORPORA[name].kind
    splits = [found.train, found.val, found.test]
    assert len({*"".join(found.train)}) > 1 and all(map("".join, splits))
    assert found.n_characters == sum(len(text) for split in splits for text in split)
    assert max(found.overlaps) < 0.05, "what is shipped needs no warning"
    if found.of_pairs:
        assert all(text for split in splits for text in split)
        sources = [{*split[::2]} for split in splits]
        assert sum(map(len, sources)) == len(set.union(*sources))
    elif name != "text":
        sizes = [sum(map(len, split)) / found.n_characters for split in splits]
        assert sizes == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


@pytest.mark.slow
def test_python_corpora_are_there_offline_and_the_same_in_every_process():
    answer = captured([sys.executable, "-c", READ_OFFLINE, *ALWAYS_THERE], timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [read(name).digest for name in ALWAYS_THERE]


def test_tinyshakespeare_offline_says_in_one_line_how_to_provide_it(tmp_path, monkeypatch):
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


def test_a_glob_has_files_in_order_none_hidden_and_follows_no_links(tmp_path, monkeypatch):
    for name in ("b.txt", "a/z.txt", "a/deep/er/y.txt", "c.md", ".hidden/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name * 2)
    (tmp_path / "a/round").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    texts = ["a/deep/er/y.txt", "a/z.txt", "b.txt"]
    for pattern, names in {
        "**/*.txt": texts, "[bc].*": ["b.txt", "c.md"], "**": [*texts, "c.md"], ".": [*texts, "c.md"],
        "a/round/**/z.txt": ["a/round/a/z.txt"], "*/*.txt": ["a/z.txt"],
    }.items():  # fmt: skip
        assert user_files(pattern) == [tmp_path / name for name in names]
    assert text_of("text", "[bc].*") == "b.txtb.txt\n\nc.mdc.md"
    monkeypatch.setattr(formats, "MOST_FILES", 1)
    with pytest.raises(
        BadInput, match=r"more than 1 files match \*\*; allowed: the files of one folder"
    ):
        user_files("**")


CONTENT = b"To be, or not to be\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """A loopback server that counts its requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.n_requests = 0

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.n_requests += 1
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/file" else CONTENT[:-1])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def left_in(folder):
    return sorted(file.name for file in folder.iterdir() if not file.name.endswith(".lock"))


def test_download_fetches_once_for_all_who_ask(server, tmp_path):
    target = tmp_path / "new" / "file.txt"
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda _: download(server.url("/file"), target, SHA256), range(8))}
    assert download(server.url("/file"), target, SHA256) == target and found == {target}
    assert target.read_bytes() == CONTENT and server.n_requests == 1
    assert left_in(target.parent) == ["file.txt"]


@pytest.mark.parametrize(
    ("path", "says"), [("/cut", f"should be {SHA256}"), ("/missing", "404")]
)
def test_download_refuses_the_wrong_thing_and_leaves_nothing(server, tmp_path, path, says):
    with pytest.raises(OSError, match=says):
        download(server.url(path), tmp_path / "file.txt", SHA256)
    assert left_in(tmp_path) == []
