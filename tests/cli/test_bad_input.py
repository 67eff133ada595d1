"""Whatever a user gets wrong is said in a line or a few, with its place, and costs nothing."""

import os
import re
from pathlib import Path

import pytest

# The study that is right; each case below changes it. Its lines are counted from 1.
STUDY = """\
name: tiny
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 10, n_layer: 1, n_embd: 16, n_head: 2}
search:
  learning_rate: {min: 3e-4, max: 1e-2, log: true}
  weight_decay: suggested
budget: {trials_per_cell: 2}
"""
RATE = "learning_rate: {min: 3e-4, max: 1e-2, log: true}"


def with_text(text: str) -> tuple[str, str]:
    return "{corpus: python-docs,", f"{{corpus: text, path: {text},"


# What is replaced, by what; where that is wrong; what is said of it.
CHANGES = {
    "unknown key": ("budget:", "bugdet:", "7:1", ['unknown key "bugdet"', "did you mean 'budget'?"]),
    "no cell within a bound": (
        "budget:", "constraints: ['n_params <= 1000']\nbudget:", "7:15", ["; the smallest n_params is 5,"]
    ),
    "an escape of no text": ("budget:", 'warm_start: ["a\\0.csv"]\nbudget:', "7:14", ["'\\x00' is not allowed"]),
    "a name of several lines": ("budget:", '"bud\\u2028get":', "7:1", [r'unknown key "bud\u2028get"', "'budget'"]),
    "a step too small": (
        RATE,
        "dropout: {min: 0.0, max: 0.5, step: 1e-300}",
        "5:39",
        ["dropout.step is 1e-300", "at most 9,007,199,254,740,992"],
    ),
    "processes without end": (
        "budget:",
        "engine: {workers: 100000000000}\nbudget:",
        "7:19",
        ["from 1 to 65536"],
    ),
    "a constraint without a value": (
        "budget:",
        "constraints: ['n_embd / (n_layer - 1) > 1']\nbudget:",
        "7:15",
        ["no cell meets 'n_embd / (n_layer - 1) > 1' where n_embd is 16"],
    ),
    "a file of the system's": (*with_text("/proc/kmsg"), "2:28", ["data.path names /proc/kmsg", "by which you"]),
    "a pipe to start from": (
        "budget:",
        "init_from: pipe\nbudget:",
        "7:12",
        ["there is no checkpoint in", "a folder with model.json"],
    ),
    "block longer than data": ("size: 16", "size: 900000", "3:21", ["longer than the data", "most 36426"]),
    "empty corpus": (*with_text("empty.txt"), "2:28", ["empty.txt is empty"]),
    "binary corpus": (*with_text("binary.dat"), "2:28", ["binary.dat is not a text: byte 0 is 0"]),
    "one-character corpus": (*with_text("same.txt"), "2:28", ["same.txt consists of one repeated character, 'a'"]),
    "a vocabulary too small": ("n_layer: 1", "n_layer: 1, vocab_size: 9", "3:79", ["vocab_size >= 103"]),
    "no place for tracking": ("budget:", "track: {uri: 'ftp://x'}\nbudget:", "7:14", ["ftp://x", "sqlite:///"]),
}  # fmt: skip


@pytest.fixture
def files(folder: Path) -> Path:
    """Lay down the corpora that the cases name, and the lab's folder that must not come to be."""
    (folder / "empty.txt").touch()
    (folder / "binary.dat").write_bytes(bytes(range(256)))
    (folder / "latin.txt").write_bytes("café".encode("latin-1") * 99)
    (folder / "same.txt").write_text("a" * 999)
    (folder / "short.txt").write_text("hello world")
    (folder / "texts").mkdir()
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "model.json")
    return folder


@pytest.fixture
def refused(cli, files):
    """Return a function that runs a study which is refused, and returns what is said, line by line."""

    def run(content: str | bytes, *arguments: str) -> list[str]:
        (files / "tiny.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
        said = cli("study", "run", "tiny.yaml", *arguments)
        assert (said.code, said.out) == (2, "")
        assert not (files / "lab").exists(), "something was written"
        lines = said.err.splitlines()
        assert lines and all(line.startswith("error: ") for line in lines), said.err
        return [line.removeprefix("error: ") for line in lines]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("case", CHANGES)
def test_one_thing_wrong_is_one_line_at_its_place(case: str, refused) -> None:
    old, new, place, fragments = CHANGES[case]
    assert old in STUDY
    (line,) = refused(STUDY.replace(old, new, 1))
    assert line.startswith(f"tiny.yaml:{place}: ")
    assert all(fragment in line for fragment in fragments), line


def test_all_that_is_wrong_is_said_at_once(refused) -> None:
    wrong = STUDY.replace("n_layer", "n_layr").replace("log:", "lg:").replace("budget", "budgt")
    assert [line.split()[0] for line in refused(wrong)] == [
        "tiny.yaml:3:55:",
        "tiny.yaml:5:41:",
        "tiny.yaml:7:1:",
    ]
    wrong = STUDY.replace(*with_text("nowhere.txt")).replace("budget:", "track: {uri: 'ftp://x'}\nbudget:")
    places = {line.split()[0] for line in refused(wrong, "--lab", "tiny.yaml")}
    assert places == {"tiny.yaml:2:28:", "tiny.yaml:7:14:", str(Path("tiny.yaml").absolute())}


@pytest.mark.parametrize("lab", ["a file", "a file/lab", "/proc/lab", "/dev/null"])
def test_a_lab_that_cannot_be_written(lab: str, refused, files: Path, monkeypatch) -> None:
    (files / "a file").touch()
    for arguments in (("--lab", lab), ()):
        monkeypatch.setenv("SWEEPLAB_LAB", lab)
        (line,) = refused(STUDY, *arguments)
        assert line.startswith(f"{Path(lab).absolute()} cannot be written (")
        assert line.endswith("--lab or SWEEPLAB_LAB name another folder")


def test_no_room_for_the_checkpoints(refused) -> None:
    # 10**12 models of 21 kB are more than any disk holds.
    (line,) = refused(STUDY, "-o", "budget.trials_per_cell=1000000000000")
    assert re.search(
        r"/lab has [\d.]+ [kMGT]B of free space, checkpoints need [\d.]+ TB; .*; track: {checkpoints: none}",
        line,
    )


@pytest.mark.timeout(300)  # of which reading any of these takes much more
@pytest.mark.parametrize(
    "words", ["laws fit HOLE.csv", "import-hf HOLE", "study plan HOLE.yaml", "study plan tiny.yaml"]
)
def test_a_file_of_holes_is_not_read(words: str, cli, folder: Path) -> None:
    (folder / "HOLE").mkdir()
    for name in ("HOLE.csv", "HOLE/config.json", "HOLE.yaml", "HOLE.txt"):
        (folder / name).touch()
        os.truncate(folder / name, 2**40)
    text = "corpus: text, tokenizer: char, path: HOLE.txt"
    (folder / "tiny.yaml").write_text(STUDY.replace("corpus: python-docs, tokenizer: char", text))
    said = cli(*words.split())
    assert (said.code, said.out) == (2, "")
    assert "HOLE" in said.err and said.err.count("\n") == 1
