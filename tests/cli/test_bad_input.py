"""Whatever a user gets wrong in a study file is said in a line or a few, with its place, and costs nothing."""

import os
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
RATE, DOCS = "learning_rate: {min: 3e-4, max: 1e-2, log: true}", "{corpus: python-docs,"
# What is replaced, by what; where that is wrong; what is said of it.
CHANGES = [
    ("budget:", "bugdet:", "7:1", "did you mean 'budget'?"),
    ("budget:", '"bud\\u2028get":', "7:1", r'unknown key "bud\u2028get"'),
    ("budget:", "constraints: ['n_params <= 1000']\nbudget:", "7:15", "no cell meets"),
    (
        "budget:",
        "constraints: ['n_embd / (n_layer - 1) > 1']\nbudget:",
        "7:15",
        "where n_embd is 16",
    ),
    ("budget:", 'warm_start: ["a\\0.csv"]\nbudget:', "7:14", "'\\x00' is not allowed"),
    (
        "budget:",
        "engine: {workers: 100000000000}\nbudget:",
        "7:10",
        "at least 1, at most 65,536",
    ),
    ("budget:", "init_from: pipe\nbudget:", "7:1", "there is no checkpoint in"),
    ("budget:", "track: {uri: 'ftp://x'}\nbudget:", "7:9", "sqlite:///"),
    (RATE, "dropout: {min: 0.0, max: 0.5, step: 1e-300}", "5:33", "one that divides the range"),
    ("size: 16", "size: 900000", "3:9", "longer than the data"),
    ("n_layer: 1", "n_layer: 1, vocab_size: 9", "3:67", "vocab_size >= 103"),
    (DOCS, "{corpus: text, path: /proc/kmsg,", "2:22", "data.path names /proc/kmsg"),
    (DOCS, "{corpus: text, path: empty.txt,", "2:22", "empty.txt is empty"),
    (DOCS, "{corpus: text, path: binary.dat,", "2:22", "binary.dat is not a text: byte 0 is 0"),
]


@pytest.fixture
def refused(cli, folder):
    """Return a function that runs a study which is refused, and returns what is said, line by line."""
    (folder / "empty.txt").touch()
    (folder / "binary.dat").write_bytes(bytes(range(256)))
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "model.json")

    def run(content, *arguments):
        (folder / "tiny.yaml").write_text(content)
        said = cli("run", "tiny.yaml", *arguments)
        assert (said.code, said.out) == (2, "")
        assert not (folder / "lab").exists(), "something was written"
        lines = said.err.splitlines()
        assert lines and all(line.startswith("error: ") for line in lines), said.err
        return [line.removeprefix("error: ") for line in lines]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "place", "said"), CHANGES)
def test_one_thing_wrong_is_one_line_at_its_place(old, new, place, said, refused):
    (line,) = refused(STUDY.replace(old, new, 1))
    assert line.startswith(f"tiny.yaml:{place}: ") and said in line


def test_all_that_is_wrong_is_said_at_once(refused):
    wrong = STUDY.replace("n_layer", "n_layr").replace("log:", "lg:").replace("budget", "budgt")
    places = [line.split()[0] for line in refused(wrong)]
    assert places == ["tiny.yaml:3:55:", "tiny.yaml:5:41:", "tiny.yaml:7:1:"]
    wrong = STUDY.replace(DOCS, "{corpus: text, path: nowhere.txt,")
    places = [line.split()[0] for line in refused(wrong, "--lab", "tiny.yaml")]
    assert {*places} == {"tiny.yaml:2:22:", str(Path("tiny.yaml").absolute())}


@pytest.mark.parametrize("lab", ["a file", "a file/lab", "/proc/lab", "/dev/null"])
def test_a_lab_that_cannot_be_written(lab, refused, folder, monkeypatch):
    (folder / "a file").touch()
    monkeypatch.setenv("SWEEPLAB_LAB", lab)
    for arguments in (("--lab", lab), ()):
        (line,) = refused(STUDY, *arguments)
        assert line.startswith(f"{Path(lab).absolute()} cannot be written (")


def test_no_room_for_the_checkpoints(refused):
    # 10**12 models of 21 kB are more than any disk holds.
    (line,) = refused(STUDY, "-o", "budget.trials_per_cell=1000000000000")
    assert "of free space, checkpoints need" in line and "track: {checkpoints: none}" in line


@pytest.mark.timeout(300)  # of which reading any of these takes much more
@pytest.mark.parametrize(
    "words", ["laws fit HOLE.csv", "import-hf HOLE", "plan HOLE.yaml", "plan tiny.yaml"]
)
def test_a_file_of_holes_is_not_read(words, cli, folder):
    (folder / "HOLE").mkdir()
    for name in ("HOLE.csv", "HOLE/config.json", "HOLE.yaml", "HOLE.txt"):
        (folder / name).touch()
        os.truncate(folder / name, 2**40)
    (folder / "tiny.yaml").write_text(STUDY.replace(DOCS, "{corpus: text, path: HOLE.txt,"))
    said = cli(*words.split())
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1) and "HOLE" in said.err
