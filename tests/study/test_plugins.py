"""Files of the user's own: they run when the user says so and not before, and what they raise is said in a line."""

import hashlib
import json
import sys

import pytest
from terminal import said

from sweeplab.errors import BadInput
from sweeplab.hyperparameters import TABLE
from sweeplab.lab.studies import check_same_study, write_study
from sweeplab.plugins import add_names
from sweeplab.study.file.reading import read_study

pytestmark = pytest.mark.usefixtures("forgets_plugins")
STUDY = """\
name: own
plugins: [my_parts.py]
data: {corpus: digits, tokenizer: threes}
fixed: {block_size: 8, batch_size: 2, max_iters: 4, n_layer: 1, n_embd: 8, n_head: 1, activation: squared}
objective: {metric: bits}
budget: {trials_per_cell: 1}
"""
PARTS = '''\
from pathlib import Path
from typing import ClassVar

import numpy as np

from sweeplab.data.tokenizers import CharTokenizer, Tokenizer
from sweeplab.plugins import activation, corpus, metric, tokenizer

Path(__file__).with_name("it ran").touch()


@corpus("digits", "Numbers in a row")
def digits(files):
    return " ".join(map(str, range(3000)))


@activation("squared")
def squared(x):
    return x.relu().square()


@metric("bits")
def bits(model, batches, record):
    return record.val_loss / 0.6931471805599453


@tokenizer
class Threes(Tokenizer):
    """Characters, whose numbers are thrice as large."""

    name: ClassVar[str] = "threes"

    def __init__(self, chars):
        self.chars = CharTokenizer(chars)

    @property
    def vocab_size(self):
        return 3 * self.chars.vocab_size

    @classmethod
    def train(cls, text):
        return cls("".join(sorted(set(text))))

    def encode(self, text):
        return self.chars.encode(text) * np.uint16(3)

    def decode(self, ids):
        return self.chars.decode(np.asarray(ids) // 3)

    def to_json(self):
        return {"name": self.name, "chars": self.chars.characters}

    @classmethod
    def from_json(cls, description):
        return cls(description["chars"])
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own.yaml").write_text(STUDY)
    (tmp_path / "my_parts.py").write_text(PARTS)
    return tmp_path / "own.yaml"


def in_another_process(code, *arguments):
    """Run code where no part of a plugin is known yet; return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return said(command)


READ = """
import sys
from pathlib import Path
from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_study
for file in sys.argv[1:]:
    try:
        print(read_study(Path(file)).plugins[0].provides)
    except BadInput as error:
        print(error)
print("torch" in sys.modules)
"""


def test_a_strangers_file_runs_nothing(file, tmp_path, monkeypatch):
    document = as_written_by(file)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    (file.parent / "it ran").unlink()
    (file.parent / "study.json").write_text(json.dumps(document))
    refused, known, torch = in_another_process(
        READ, file, file.parent / "study.json"
    ).splitlines()
    what = "the plugin my_parts.py is code that would run here"
    assert refused.startswith(f"{file}:2:11: {what}; allowed: --allow-plugins")
    assert "'corpus': ['digits']" in known and torch == "False", "its parts' names are known"
    assert not (file.parent / "it ran").exists()


def as_written_by(file):
    return read_study(file, allow_plugins=True).as_written()


def test_parts_are_known_and_their_file_is_part_of_the_study(file, tmp_path):
    from sweeplab.data.dataset import prepare
    from sweeplab.records.folders import StudyFolder
    from sweeplab.study.inputs import describe_data
    from sweeplab.sweep.trials.storage import TrialStorage

    spec = read_study(file, allow_plugins=True)
    (plugin,) = spec.plugins
    assert plugin.sha256 == hashlib.sha256(PARTS.encode()).hexdigest()
    assert plugin.provides == {
        "corpus": ["digits"], "tokenizer": ["threes"], "activation": ["squared"], "metric": ["bits"]
    }  # fmt: skip
    dataset = prepare("digits", "threes")
    assert dataset.tokenizer.vocab_size == 33 and set(dataset.train % 3) == {0}
    data, folder = describe_data(spec, dataset), StudyFolder(tmp_path / "lab", "own")
    folder.path.mkdir(parents=True)
    # Which is there before the study is written down.
    TrialStorage(folder.storage_url).engine.dispose()
    write_study(spec, folder, data)
    check_same_study(read_study(file, allow_plugins=True), folder, data)
    assert read_study(folder.canonical_file).as_written() == spec.as_written()
    (file.parent / "my_parts.py").write_text(PARTS + "\n")
    with pytest.raises(BadInput, match=r"another study named own exists in .*: plugins is "):
        check_same_study(read_study(file, allow_plugins=True), folder, data)
    with pytest.raises(BadInput, match=r"my_parts\.py has changed: its sha256 begins with"):
        read_study(folder.canonical_file, allow_plugins=True)
    assert read_study(folder.canonical_file).plugins == spec.plugins, "looking needs no file"


def test_tokens_are_cut_anew_when_the_tokenizer_changes(file):
    from sweeplab.data.dataset import prepare

    read_study(file, allow_plugins=True)
    before = prepare("digits", "threes").token_digest
    changed = PARTS.replace("np.uint16(3)", "np.uint16(3) + np.uint16(1)")
    (file.parent / "my_parts.py").write_text(changed)
    read_study(file, allow_plugins=True)
    assert prepare("digits", "threes").token_digest != before
    (file.parent / "my_parts.py").write_text(PARTS)
    read_study(file, allow_plugins=True)
    assert prepare("digits", "threes").token_digest == before


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\n\ny = 1 / 0", "my_parts.py:3: ZeroDivisionError: division by zero"),
        ("def f(:", "my_parts.py:1: SyntaxError: "),
        (
            "from dataclasses import make_dataclass\nfrom sweeplab.plugins import model\n"
            "@model('own', make_dataclass('S', [('width', int, 3)]))\ndef f(values): ...",
            "my_parts.py:3: ValueError: width of model own is another name of n_embd: read values.n_embd",
        ),
        ("raise SystemExit(7)", "my_parts.py:1: SystemExit: 7"),
        ("raise ValueError('one\\ntwo')", "my_parts.py:1: ValueError: one"),
        (
            "from sweeplab.plugins import metric\n@metric('val_loss')\ndef f(*_): return 0.0",
            "my_parts.py:2: ValueError: metric 'val_loss' is sweeplab's own: give another name",
        ),
    ],
)
def test_a_plugin_that_raises_is_one_line(code, said, file):
    (file.parent / "my_parts.py").write_text(code)
    file.write_text(
        STUDY.replace("digits", "python-docs")
        .replace("threes", "char")
        .replace("squared", "relu")
        .replace("bits", "val_loss")
    )
    with pytest.raises(BadInput) as error:
        read_study(file, allow_plugins=True)
    (problem,) = error.value.problems
    assert str(problem).startswith(f"{file}:2:11: {file.parent}/{said}")


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        ("[my_part.py]", "no plugin .*: No such file or directory; did you mean 'my_parts.py'"),
        ("[1]", r"plugins\[0\] is 1; allowed: a Python file"),
        (
            "[{file: my_parts.py, sha256: abc}]",
            "has changed: its sha256 begins with [0-9a-f]{12}, not abc",
        ),
    ],
)
def test_what_is_no_plugin(plugins, said, file):
    file.write_text(STUDY.replace("[my_parts.py]", plugins))
    with pytest.raises(BadInput, match=said):
        read_study(file, allow_plugins=True)


def test_a_permission_is_given_once_to_this_code(file):
    with pytest.raises(BadInput, match="is code that would run here; allowed: --allow-plugins"):
        read_study(file)
    read_study(file, allow_plugins=True)
    assert read_study(file).plugins[0].provides["corpus"] == ["digits"]
    (file.parent / "elsewhere.py").write_text(PARTS)
    assert (
        read_study(file, ["plugins=[elsewhere.py]"]).plugins[0].file.endswith("elsewhere.py")
    ), "by its digest"
    (file.parent / "my_parts.py").write_text(PARTS + "# changed\n")
    with pytest.raises(BadInput, match=r"my_parts.py is code that would run here"):
        read_study(file)
    read_study(file, allow_plugins=True)
    read_study(file)


def test_a_hyperparameter_without_a_row_is_known_by_its_name():
    add_names({"hyperparameter": ["pull", "push"]}, {"push": 3})
    assert {"pull", "push"} <= TABLE.keys()
