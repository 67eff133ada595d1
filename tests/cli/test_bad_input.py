"""Whatever a user gets wrong is said in a line or a few, with its place, and costs nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from filelock import FileLock

from sweeplab.train.devices import cuda_count

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
    "unknown hyperparameter": ("n_layer", "n_layrs", "3:55", ['"n_layrs"', "did you mean 'n_layer'?"]),
    "no cell within a bound": (
        "budget:", "constraints: ['n_params <= 1000']\nbudget:", "7:15", ["; the smallest n_params is 5,"]
    ),
    "text for a number": ("batch_size: 4", "batch_size: four", "3:37", ['"four"', "a whole number from 1"]),
    "a fraction for a count": ("n_layer: 1", "n_layer: 1.5", "3:64", ["1.5", "allowed: a whole number"]),
    "a number for a list": ("budget:", "seeds: 0\nbudget:", "7:8", ["seeds is 0", "allowed: a list"]),
    "inverted range": ("min: 3e-4, max: 1e-2", "min: 1e-2, max: 3e-4", "5:18", ["inverted", "min below max"]),
    "empty range": ("min: 3e-4", "min: 1e-2", "5:18", ["is empty", "0.01", "fixed"]),
    "empty choice": (RATE, "activation: []", "5:15", ["activation is []", "gelu | relu"]),
    "logarithm of zero": ("suggested", "{min: 0, max: 0.1, log: true}", "6:23", ["starts at 0", "above 0"]),
    "heads that divide nothing": ("n_head: 2", "n_head: 3", "3:87", ["n_embd % n_head == 0", "n_head is 3"]),
    "unknown name": (RATE, "min_lr: {expr: learning_rat / 9}", "5:18", ["did you mean 'learning_rate'?"]),
    "a cycle": (
        RATE,
        "learning_rate: {expr: min_lr * 9}\n  min_lr: {expr: learning_rate / 9}",
        "5:3",
        ["learning_rate depends on itself: learning_rate needs min_lr needs learning_rate"],
    ),
    "no value of its tag": ("n_layer: 1", "n_layer: 1, bias: !!bool maybe", "3:73", ['"maybe" is not a valid value']),
    "an escape of no text": ("budget:", 'warm_start: ["a\\0.csv"]\nbudget:', "7:14", ["'\\x00' is not allowed"]),
    "a name of several lines": ("budget:", '"bud\\u2028get":', "7:1", [r'unknown key "bud\u2028get"', "'budget'"]),
    "a step too small": (
        RATE,
        "dropout: {min: 0.0, max: 0.5, step: 1e-300}",
        "5:39",
        ["dropout.step is 1e-300", "at most 9,007,199,254,740,992"],
    ),
    "a step whose next end is no number": (
        RATE,
        "learning_rate: {min: 1e308, max: 1.7e308, step: 9e307}",
        "5:51",
        ["max 1.7e+308 is not a whole number of steps above min 1e+308"],
    ),
    "a seed of 400 digits": ("budget:", f"seeds: [{'9' * 400}]\nbudget:", "7:9", ["from 0 to 2,147,483,647"]),
    "a rate without end": (
        "budget:",
        "pruner: {type: asha, early_stopping_rate: 1000000000}\nbudget:",
        "7:43",
        ["early_stopping_rate is 1000000000; allowed: at most 30"],
    ),
    "a time that is none": (
        "{trials_per_cell: 2}",
        f"{{time: {'dhms' * 200}!}}",
        "7:16",
        ["budget.time is not a duration", "1h30m"],
    ),
    "processes without end": (
        "budget:",
        "engine: {workers: 100000000000}\nbudget:",
        "7:19",
        ["from 1 to 65536"],
    ),
    "trials without end": ("{trials_per_cell: 2}", f"{{trials_per_cell: {'9' * 400}}}", "7:27", ["at most"]),
    "a constraint without a value": (
        "budget:",
        "constraints: ['n_embd / (n_layer - 1) > 1']\nbudget:",
        "7:15",
        ["no cell meets 'n_embd / (n_layer - 1) > 1', which cannot be evaluated: division by zero where n_embd is 16"],
    ),
    "a constraint without a value in a trial": (
        "budget:",
        "constraints: ['log(learning_rate - 1) > 1']\nbudget:",
        "7:15",
        ["no trial meets", "which cannot be evaluated: math domain error"],
    ),
    "no such user's folder": (*with_text("~no_such_user/x.txt"), "2:28", ["there is no file", "~no_such_user/x.txt"]),
    "a file of the system's": (*with_text("/proc/kmsg"), "2:28", ["data.path names /proc/kmsg", "by which you"]),
    "a pipe to start from": (
        "budget:",
        "init_from: pipe\nbudget:",
        "7:12",
        ["there is no checkpoint in", "a folder with model.json"],
    ),
    "no arithmetic": (RATE, "min_lr: {expr: \"open('x')\"}", "5:18", ["is not arithmetic", "allowed: names"]),
    "no cell": ("budget:", 'constraints: ["n_params > 1e9"]\nbudget:', "7:15", ["no cell meets"]),
    "no trial": ("budget:", 'constraints: ["learning_rate > 1"]\nbudget:', "7:15", ["no trial meets"]),
    "block longer than data": ("size: 16", "size: 900_000", "3:21", ["longer than the data", "most 36426"]),
    "corpus of too long a name": (*with_text("a" * 5000), "2:28", ["cannot be a file", "File name too long"]),
    "missing corpus": (*with_text("nowhere.txt"), "2:28", ["there is no file", "nowhere.txt"]),
    "empty corpus": (*with_text("empty.txt"), "2:28", ["empty.txt is empty"]),
    "binary corpus": (*with_text("binary.dat"), "2:28", ["binary.dat is not a text: byte 0 is 0"]),
    "foreign corpus": (*with_text("latin.txt"), "2:28", ["latin.txt is not UTF-8: byte 3 is 0xe9"]),
    "one-character corpus": (*with_text("same.txt"), "2:28", ["same.txt consists of one repeated character, 'a'"]),
    "short corpus": (*with_text("short.txt"), "3:21", ["longer than the data", "validation split has 1"]),
    "a folder as corpus": (*with_text("texts"), "2:28", ["texts is a folder; name its files"]),
    "no path": ("corpus: python-docs", "corpus: text", "2:16", ["corpus text needs a path"]),
    "unknown corpus": ("python-docs", "python-doc", "2:16", ["did you mean 'python-docs'?"]),
    "duplicate key": ("budget:", "name: other\nbudget:", "7:1", ['"name" is given twice, first on line 1']),
    "tab": ("  learning_rate", "\tlearning_rate", "5:1", ["a tab", "spaces"]),
    "alias": ("budget:", "a: &a [1]\nb: *a\nbudget:", "8:4", ["the alias *a is not supported"]),
    "a vocabulary too small": ("n_layer: 1", "n_layer: 1, vocab_size: 9", "3:79", ["vocab_size >= 103"]),
    "unknown sampler": ("budget:", "sampler: tpee\nbudget:", "7:10", ["tpe | gp", "did you mean 'tpe'?"]),
    "unknown option": ("budget:", "pruner: {type: asha, min_iter: 9}\nbudget:", "7:22", ["'min_iters'?"]),
    "no place for tracking": ("budget:", "track: {uri: 'ftp://x'}\nbudget:", "7:14", ["ftp://x", "sqlite:///"]),
    "no name for a folder": ("name: tiny", "name: ../tiny", "1:7", ["letters, digits"]),
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


@pytest.mark.parametrize("case", CHANGES)
def test_one_thing_wrong_is_one_line_at_its_place(case: str, refused) -> None:
    old, new, place, fragments = CHANGES[case]
    assert old in STUDY
    (line,) = refused(STUDY.replace(old, new, 1))
    assert line.startswith(f"tiny.yaml:{place}: ")
    assert all(fragment in line for fragment in fragments), line


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(STUDY.encode() + b"# caf\xe9", "tiny.yaml:8:6: a byte that is not UTF-8", id="latin"),
        pytest.param(STUDY + "#" * 10**7, "tiny.yaml: the file is too large; allowed: at most", id="10 MB"),
        pytest.param("", "tiny.yaml: the study is empty", id="empty"),
        pytest.param("hello", "tiny.yaml:1:1: a study is a mapping", id="no mapping"),
        pytest.param(STUDY + "x: " + "[" * 99 + "]" * 99, "tiny.yaml:8:", id="deep"),
        pytest.param(
            "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n" + STUDY,
            "tiny.yaml:2:8: the alias *a is not supported",
            id="a bomb of aliases",
        ),
    ],
)  # fmt: skip
def test_what_is_no_study(content: str | bytes, said: str, refused) -> None:
    (line,) = refused(content)
    assert line.startswith(said)
    assert len(line) < 200


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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("max_iter=9", "'max_iter' is unknown; .*did you mean 'max_iters'"),
        ("max_iters=few", 'fixed.max_iters is "few"; allowed: a whole number'),
        ("max_iters", "no value is given; allowed: name=value"),
        ("max_iters=", "fixed.max_iters is null"),
        ("max_iters=[1", "expected"),
        ("budget.trial=9", 'budget: unknown key "trial"; allowed: trials_per_cell'),
        ("budget.time=soon", "is not a duration"),
        ("data.path=x.txt", "corpus python-docs takes no path"),
        ("n_head=3", "n_embd % n_head == 0"),
        ("block_size=900000", "longer than the data"),
    ],
)
def test_an_override_is_named_in_place_of_a_line(override: str, said: str, refused) -> None:
    (line,) = refused(STUDY, "-o", override)
    assert line.startswith(f"-o {override}: ")
    assert re.search(said, line), line


@pytest.mark.skipif(cuda_count() > 0, reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("n_layer: 1", "n_layer: 1, device: cuda"), "3:75"),
        (("search:", "grid: {device: [cpu, cuda]}\nsearch:"), "4:22"),
    ],
)
def test_no_cuda(change: tuple[str, str], place: str, refused) -> None:
    (line,) = refused(STUDY.replace(*change))
    assert line.startswith(
        f"tiny.yaml:{place}: device is cuda, but there is no CUDA device here; allowed: cpu"
    )


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
    (line,) = refused(STUDY, "-o", "budget.trials_per_cell=1_000_000_000_000")
    assert re.search(
        r"/lab has [\d.]+ [kMGT]B of free space, checkpoints need [\d.]+ TB; track: {checkpoints: none}", line
    )


@pytest.mark.parametrize(
    "words",
    [
        "laws fit NAME",
        "laws fit NAME.csv",
        "laws fit NAME,NAME",
        "laws ledger --ledger NAME",
        "study list --lab NAME",
    ],
)
def test_a_name_that_is_too_long_for_a_file(words: str, cli) -> None:
    said = cli(*words.replace("NAME", "a" * 300).split())
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"error: \S{60}…: File name too long\n", said.err)


@pytest.mark.parametrize("words", ["laws fit PIPE.csv", "import-hf PIPE"])
def test_a_pipe_is_not_waited_for(words: str, cli, folder: Path) -> None:
    (folder / "PIPE").mkdir()
    os.mkfifo(folder / "PIPE" / "config.json")
    os.mkfifo(folder / "PIPE.csv")
    said = cli(*words.split())
    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"error: PIPE\S+: is no file\n", said.err)


def test_a_study_that_another_process_runs(cli, files: Path) -> None:
    (files / "tiny.yaml").write_text(STUDY)
    study = files / "lab" / "studies" / "tiny"
    study.mkdir(parents=True)
    with FileLock(study / "supervisor.lock"):
        said = cli("study", "run", "tiny.yaml")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: study tiny is being run by another process; ")
    assert [path.name for path in study.iterdir()] == ["supervisor.lock"]


def test_another_study_of_the_same_name(cli, finished) -> None:
    before = {path: path.read_bytes() for path in finished.lab.rglob("*") if path.is_file()}
    changes = ("-o", "max_iters=30", "-o", "search.learning_rate.max=2e-2", "--lab", finished.lab)
    said = cli("study", "run", finished.file, *changes)
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    differences = "fixed.max_iters is 30 and was 20; search.learning_rate.max is 0.02 and was 0.01"
    assert differences in line and line.endswith("give this one a --name of its own")
    planned = cli("study", "plan", finished.file, *changes)
    assert planned.code == 0 and differences in planned.out, "a plan is shown all the same, and says so"
    assert {path: path.read_bytes() for path in finished.lab.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("studdy", "sweeplab has no command 'studdy'; did you mean 'sweeplab study'?"),
        ("study pla tiny.yaml", "sweeplab study has no command 'pla'; did you mean 'sweeplab study plan'?"),
        ("study run", "no study is named; allowed: a new one: `sweeplab study init NAME`"),
        ("study run tiny.yaml --lap x", "No such option: --lap (Possible options: "),
        ("study run nowhere.yaml", "nowhere.yaml: No such file"),
        ("study run tiny.yml", "tiny.yml: No such file or directory; did you mean 'tiny.yaml'?"),
        ("study run .", ".: Is a directory"),
        ("study run tiny.yaml --name a/b", "--name a/b: name is not a valid study name"),
        ("study show tiny", "no study 'tiny' in {lab} yet; sweeplab study run tiny runs it"),
        ("study export tiny --output x.csv", "no study 'tiny' in {lab} yet; sweeplab study run tiny runs it"),
        ("report scaling tiny", "no study 'tiny' in {lab} yet; sweeplab study run tiny runs it"),
        ("study init tiny --table nowhere.md", "nowhere.md: No such file"),
        ("study init tiny --search learning_rat", "did you mean 'learning_rate'?"),
        ("hyperparameters --category modle", "did you mean 'model'?"),
    ],
)
def test_commands(command: str, said: str, cli, files: Path) -> None:
    (files / "tiny.yaml").write_text(STUDY)
    before = sorted(files.iterdir())
    result = cli(*command.split())
    assert (result.code, result.out) == (2, "")
    assert said.format(lab=files / "lab") in result.err
    assert len(result.err.splitlines()) == 1
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["study", "show", "tny"], "no study 'tny' in {lab}; allowed: tiny; did you mean 'tiny'?"),
        (["study", "export", "tiny", "--output", "x.txt"], "x.txt: no table has the suffix '.txt'; allowed:"),
        (["study", "export", "tiny", "--output", "no/x.csv"], "no/x.csv: cannot be written: "),
        (["report", "scaling", "tiny", "--dashboard", "no.yaml"], "no.yaml: No such file or directory"),
    ],
)  # fmt: skip
def test_commands_on_a_finished_study(command: list[str], said: str, cli, finished, folder: Path) -> None:
    result = cli(*command, "--lab", finished.lab)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {said.format(lab=finished.lab)}")
    assert not list(folder.iterdir())


def test_a_finished_study_is_as_it_was(finished) -> None:
    assert json.loads((finished.lab / "studies" / "tiny" / "study.json").read_text())["name"] == "tiny"
