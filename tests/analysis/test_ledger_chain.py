"""The ledger's file: whatever is done to it shows, and says where."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sweeplab.analysis.ledger import append, canonical, read_chain
from sweeplab.errors import BadInput
from sweeplab.formatting import several

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
def ledger(tmp_path: Path) -> Path:
    """Return a ledger of four entries, sealed in three steps."""
    path = tmp_path / "lab" / "ledger.jsonl"
    append(path, [{"loss": 3.25}])
    append(path, [{"loss": 3.125}, {"loss": 0.1}])
    append(path, [{"loss": 2.5, "name": "größer"}])
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        read_chain(path)
    (problem,) = error.value.problems
    said = str(problem)
    assert said.startswith(str(path)) and "\n" not in said
    return said.removeprefix(f"{path}: ")


def head_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.head")


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_what_is_appended_is_read(ledger: Path) -> None:
    chain = read_chain(ledger)
    assert [entry.number for entry in chain.entries] == [1, 2, 3, 4]
    assert [entry.forecast["loss"] for entry in chain.entries] == [3.25, 3.125, 0.1, 2.5]
    assert [entry.previous for entry in chain.entries[1:]] == [each.sha256 for each in chain.entries[:-1]]
    assert (chain.head, chain.has_head) == (chain.entries[-1].sha256, True)
    times = [entry.sealed for entry in chain.entries]
    assert times == sorted(times) and all(time.utcoffset().total_seconds() == 0 for time in times)
    (new,) = append(ledger, [{"loss": 2.0}])
    assert (new.number, new.previous, read_chain(ledger).head) == (5, chain.head, new.sha256)


@pytest.mark.slow
def test_every_bit_counts(ledger: Path) -> None:
    whole = ledger.read_bytes()
    for at in range(len(whole)):
        ledger.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
        line = whole[:at].count(b"\n") + 1
        said = refusal(ledger)
        assert f"line {line} " in said or f"after line {line - 1}" in said, (at, said)
    ledger.write_bytes(whole)
    assert len(read_chain(ledger).entries) == 4


def test_a_change_that_json_does_not_see_shows_too(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes().replace(b'{"loss":0.1}', b'{"loss": 0.1}'))
    assert refusal(ledger).startswith("line 3 was changed: the same content is written in other bytes")


def test_a_changed_entry_with_a_new_sha256_of_its_own_does_not_fit_the_next(ledger: Path) -> None:
    lines = lines_of(ledger)
    content = json.loads(lines[1])
    content["forecast"]["loss"] = 9.0
    del content["sha256"]
    content["sha256"] = hashlib.sha256(canonical(content)).hexdigest()
    lines[1] = canonical(content) + b"\n"
    ledger.write_bytes(b"".join(lines))
    assert refusal(ledger).startswith("line 3 is entry 3 and does not follow entry 2")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([1, 2, 3], "line 1 is entry 2 and does not begin a ledger"),
        ([0, 2, 3], "line 2 is entry 3 and does not follow entry 1"),
        ([0, 1, 3], "line 3 is entry 4 and does not follow entry 2"),
        ([0, 1, 2], "1 of 4 entries are missing from its end, after line 3"),
        ([], "4 of 4 entries are missing from its end, after line 0"),
        ([0, 2, 1, 3], "line 2 is entry 3 and does not follow entry 1"),
        ([0, 1, 2, 2, 3], "line 4 is entry 3 and does not follow entry 3"),
        ([3, 2, 1, 0], "line 1 is entry 4 and does not begin"),
    ],
)
def test_lines_removed_moved_and_repeated(order: list[int], said: str, ledger: Path) -> None:
    lines = lines_of(ledger)
    ledger.write_bytes(b"".join(lines[at] for at in order))
    before = ledger.read_bytes()
    assert refusal(ledger).startswith(said)
    with pytest.raises(BadInput):
        append(ledger, [{"loss": 1.0}])
    assert ledger.read_bytes() == before, "a broken ledger is left as it is"


def test_a_line_from_another_ledger_and_a_line_of_another_kind(ledger: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    append(other, [{"loss": 1.0}, {"loss": 1.0}])
    lines = lines_of(ledger)
    ledger.write_bytes(lines[0] + lines_of(other)[1] + b"".join(lines[1:]))
    assert refusal(ledger).startswith("line 2 is entry 2 and does not follow entry 1")
    for line in (b"\n", b"[]\n", b"{}\n", b"[" * 20_000 + b"\n", b"\xff\n"):
        ledger.write_bytes(lines[0] + line + b"".join(lines[1:]))
        assert refusal(ledger).startswith("line 2 is not ")


def test_a_ledger_written_anew_is_not_what_its_head_says(ledger: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    append(other, [{"loss": 1.0}] * 4)
    ledger.write_bytes(other.read_bytes())
    assert refusal(ledger).startswith("line 4 is not the entry that was sealed, according to ledger.")
    ledger.unlink()
    assert refusal(ledger).startswith("4 of 4 entries are missing")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"entries":0,"sha256":""}', "[]", '{"entries":"many","sha256":""}']
)
def test_a_head_that_is_none(text: str, ledger: Path) -> None:
    head_file(ledger).write_text(text)
    with pytest.raises(BadInput, match=r"ledger.jsonl.head: was changed: it is not the head of a ledger"):
        read_chain(ledger)


def test_killed_before_the_head_was_written(ledger: Path) -> None:
    before = head_file(ledger).read_bytes()
    append(ledger, [{"loss": 2.0}])
    head_file(ledger).write_bytes(before)
    assert len(read_chain(ledger).entries) == 5
    head_file(ledger).unlink()
    assert not read_chain(ledger).has_head


def test_a_torn_last_line_is_named_and_never_cut(ledger: Path) -> None:
    lines, head = lines_of(ledger), head_file(ledger).read_bytes()
    append(ledger, [{"loss": 2.0}])
    whole = ledger.read_bytes()
    head_file(ledger).write_bytes(head)
    size = len(b"".join(lines))
    for cut in range(size + 1, len(whole) - 1):
        ledger.write_bytes(whole[:cut])
        assert refusal(ledger).startswith(
            f"line 5 is cut off after {several(cut - size, 'byte')}, as after a kill"
        )
    with pytest.raises(BadInput, match="line 5 is cut off"):
        append(ledger, [{"loss": 2.0}])
    assert ledger.read_bytes() == whole[: len(whole) - 2]
    (command,) = re.findall(r"truncate -s .*$", refusal(ledger))
    subprocess.run(shlex.split(command), check=True)
    assert len(read_chain(ledger).entries) == 4


def test_a_last_line_without_its_newline_is_whole(ledger: Path) -> None:
    head = head_file(ledger).read_bytes()
    append(ledger, [{"loss": 2.0}])
    head_file(ledger).write_bytes(head)
    ledger.write_bytes(ledger.read_bytes()[:-1])
    (command,) = re.findall(r"printf .*$", refusal(ledger))
    subprocess.run(command, shell=True, check=True)
    assert len(read_chain(ledger).entries) == 5


def test_a_sealed_line_that_is_cut_was_changed(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[:-20])
    assert refusal(ledger).startswith("line 4 was changed: it is cut off, and was whole when it was sealed")


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    path, n = tmp_path / "ledger.jsonl", 40
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, name, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=300)
        assert writer.returncode == 0
    said = [(entry.forecast["by"], entry.forecast["k"]) for entry in read_chain(path).entries]
    assert sorted(said) == [(name, k) for name in "ab" for k in range(n)]
    assert [k for by, k in said if by == "a"] == list(range(n)), "each in its own order"


@pytest.mark.parametrize("wait", [1, 5, 12])
def test_a_kill_leaves_a_ledger_or_a_named_torn_line(wait: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "a", "100000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    writer.stdout.readline()
    writer.stdin.write(b"go\n")
    writer.stdin.flush()
    while not path.exists() or path.read_bytes().count(b"\n") < wait:
        assert writer.poll() is None
    writer.kill()
    writer.communicate(timeout=120)
    try:
        chain = read_chain(path)
    except BadInput as error:
        assert re.search(r"line \d+ (is cut off|lacks only the newline)", str(error))
    else:
        assert [entry.forecast["k"] for entry in chain.entries] == list(range(len(chain.entries)))


def test_no_ledger_and_no_place_for_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no ledger at .*; `sweeplab laws forecast` begins one"):
        read_chain(tmp_path / "none.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        append(tmp_path / "file" / "ledger.jsonl", [{"loss": 1.0}])
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="is no file"):
        read_chain(tmp_path / "folder")


def test_a_number_that_json_has_not_is_not_sealed(ledger: Path) -> None:
    before = ledger.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        append(ledger, [{"loss": 1.0}, {"loss": float("nan")}])
    assert ledger.read_bytes() == before
