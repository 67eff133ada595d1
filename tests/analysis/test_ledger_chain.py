"""The ledger's file: whatever is done to it shows, and says where."""

import hashlib
import json
import re
import shlex
import subprocess
import sys

import pytest

from sweeplab.analysis.ledger import append, canonical, read_ledger
from sweeplab.errors import BadInput

WRITER = """
import sys
from pathlib import Path
from sweeplab.analysis.ledger import append
print("ready", flush=True)
sys.stdin.readline()
for k in range(int(sys.argv[3])):
    append(Path(sys.argv[1]), [{"by": sys.argv[2], "k": k}])
"""


@pytest.fixture
def ledger(tmp_path):
    """Return a ledger of four entries, sealed in three steps."""
    path = tmp_path / "lab" / "ledger.jsonl"
    append(path, [{"loss": 3.25}])
    append(path, [{"loss": 3.125}, {"loss": 0.1}])
    append(path, [{"loss": 2.5, "name": "größer"}])
    return path


def refusal(path):
    with pytest.raises(BadInput) as error:
        read_ledger(path)
    (problem,) = error.value.problems
    said = str(problem)
    assert said.startswith(str(path)) and "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_what_is_appended_is_read(ledger):
    entries = read_ledger(ledger)
    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.forecast["loss"] for entry in entries] == [3.25, 3.125, 0.1, 2.5]
    assert [entry.previous for entry in entries[1:]] == [each.sha256 for each in entries[:-1]]
    times = [entry.sealed for entry in entries]
    assert times == sorted(times) and all(
        time.utcoffset().total_seconds() == 0 for time in times
    )
    (new,) = append(ledger, [{"loss": 2.0}])
    assert (new.number, new.previous, read_ledger(ledger)[-1]) == (5, entries[-1].sha256, new)


@pytest.mark.slow
def test_every_bit_counts(ledger):
    whole = ledger.read_bytes()
    for at in range(len(whole)):
        ledger.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
        assert refusal(ledger).startswith(f"line {whole[:at].count(10) + 1} "), at
    ledger.write_bytes(whole)
    assert len(read_ledger(ledger)) == 4


@pytest.mark.parametrize(
    ("order", "line"),
    [([1, 2, 3], 1), ([0, 2, 3], 2), ([0, 2, 1, 3], 2), ([0, 1, 2, 2, 3], 4)],
)
def test_lines_removed_moved_and_repeated(order, line, ledger):
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[at] for at in order))
    before = ledger.read_bytes()
    assert refusal(ledger).startswith(
        f"line {line} is entry {order[line - 1] + 1} and does not follow"
    )
    with pytest.raises(BadInput):
        append(ledger, [{"loss": 1.0}])
    assert ledger.read_bytes() == before, "a broken ledger is left as it is"


def sealed_anew(line):
    content = json.loads(line)
    content["forecast"]["loss"] = 9.0
    del content["sha256"]
    content["sha256"] = hashlib.sha256(canonical(content)).hexdigest()
    return canonical(content) + b"\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sealed_anew, "line 3 is entry 3 and does not follow the line before"),
        (
            lambda line: line.replace(b'{"loss":3.125}', b'{"loss": 3.125}'),
            "line 2 was changed",
        ),
        *(
            (lambda _, other=other: other, "line 2 is no line of a ledger")
            for other in (b"\n", b"[]\n", b"{}\n", b"[" * 20_000 + b"\n", b"\xff\n")
        ),
    ],
)
def test_a_changed_line_is_named(change, said, ledger):
    lines = ledger.read_bytes().splitlines(keepends=True)
    lines[1] = change(lines[1])
    ledger.write_bytes(b"".join(lines))
    assert refusal(ledger).startswith(said)


def test_a_torn_last_line_is_named_and_never_cut(ledger):
    size = ledger.stat().st_size
    append(ledger, [{"loss": 2.0}])
    whole = ledger.read_bytes()
    for cut in (size + 1, size + 40, len(whole) - 1):
        ledger.write_bytes(whole[:cut])
        assert refusal(ledger).startswith("line 5 is cut off after")
    with pytest.raises(BadInput, match="line 5 is cut off"):
        append(ledger, [{"loss": 2.0}])
    assert ledger.read_bytes() == whole[:-1]
    (command,) = re.findall(r"truncate -s .*$", refusal(ledger))
    subprocess.run(shlex.split(command), check=True)
    assert len(read_ledger(ledger)) == 4


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    path, n = tmp_path / "ledger.jsonl", 40
    writers = [writer(path, name, n) for name in "ab"]
    for each in writers:
        each.stdout.readline()
    for each in writers:
        each.stdin.write(b"go\n")
        each.stdin.flush()
    for each in writers:
        each.communicate(timeout=300)
        assert each.returncode == 0
    said = [(entry.forecast["by"], entry.forecast["k"]) for entry in read_ledger(path)]
    assert sorted(said) == [(name, k) for name in "ab" for k in range(n)]
    assert [k for by, k in said if by == "a"] == list(range(n)), "each in its own order"


def writer(path, name, n):
    """Start a process that appends `n` forecasts once it is told to."""
    command = [sys.executable, "-c", WRITER, str(path), name, str(n)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_kill_leaves_a_ledger_or_a_named_torn_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writing = writer(path, "a", 100_000)
    writing.stdout.readline()
    writing.stdin.write(b"go\n")
    writing.stdin.flush()
    while not path.exists() or path.read_bytes().count(b"\n") < 12:
        assert writing.poll() is None
    writing.kill()
    writing.communicate(timeout=120)
    try:
        entries = read_ledger(path)
    except BadInput as error:
        assert re.search(r"line \d+ is cut off", str(error))
    else:
        assert [entry.forecast["k"] for entry in entries] == list(range(len(entries)))


def test_no_ledger_and_no_place_for_one(tmp_path):
    with pytest.raises(
        BadInput, match=r"no ledger at .*; `sweeplab laws predict --seal` begins one"
    ):
        read_ledger(tmp_path / "none.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        append(tmp_path / "file" / "ledger.jsonl", [{"loss": 1.0}])
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="is no file"):
        read_ledger(tmp_path / "folder")
