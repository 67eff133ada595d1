import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.data.corpora import CORPORA, PairCorpus
from sweeplab.data.corpora.pairs import Pair, functions_of
from sweeplab.errors import BadInput

RULES = {
    "copy": lambda source: source,
    "reverse": lambda source: source[::-1],
    "sort": lambda source: "".join(sorted(source)),
    "addition": lambda source: str(eval(source)),
}
# Made once: another digest is another corpus, and no earlier result of it can be had again.
DIGESTS = {
    "copy": "5ab68979db611c39",
    "reverse": "0b4c8793695f50e7",
    "sort": "860724d123594c92",
    "addition": "a77f433465fd64bd",
}


def read(name, path=None):
    corpus = CORPORA[name]
    return corpus.texts({"train": corpus.files(None if path is None else str(path))})


def pairs_of(texts):
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_rules_targets_follow_from_their_sources(name):
    found = read(name)
    train, val, test = pairs_of(found.train), pairs_of(found.val), pairs_of(found.test)
    assert len(train) > 15_000 and len(val) > 1_500 and len(test) > 1_500
    assert all(target == RULES[name](source) for source, target in train + val + test)
    sources = [source for source, _ in train + val + test]
    assert len(set(sources)) == len(sources)
    assert max(map(len, sources)) <= 12
    assert found.digest[:16] == DIGESTS[name]


# ------------------------------------------------------------------ splits


def corpus_of(pairs):
    corpus = PairCorpus("some", "Some pairs", lambda path: [], lambda files, reading: pairs)
    return corpus.texts({"train": [Path("file")]})


@given(
    groups=st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.lists(st.tuples(st.text("ab", min_size=1), st.text("ab", min_size=1)), min_size=1, max_size=4),
        min_size=3, max_size=30,
    )
)  # fmt: skip
def test_no_group_and_no_source_stands_in_two_splits(groups):
    pairs = [
        Pair(f"{name}{index}{source}", target, name)
        for index, name in enumerate(groups)
        for source, target in groups[name]
    ]
    found, shuffled = corpus_of(pairs), corpus_of(pairs[::-1])
    group_of = {pair.source: pair.group for pair in pairs}
    train, val, test = (
        {group_of[source] for source in split[::2]}
        for split in (found.train, found.val, found.test)
    )
    assert not train & val and not train & test and not val & test
    assert train | val | test == set(groups)
    assert len(val) == len(test) == max(1, len(groups) // 10)
    assert {*shuffled.val[::2]} == {*found.val[::2]}, "the order of the lines decides nothing"
    assert {*shuffled.test[::2]} == {*found.test[::2]}


def test_a_source_that_is_trained_on_is_left_out_of_the_other_splits():
    same = [Pair("def f(): ...", "Do.", f"module {n}") for n in range(4)]
    found = corpus_of(
        [*same, *(Pair(f"def g{n}(): ...", "Do.", f"module {n}") for n in range(4))]
    )
    assert "def f(): ..." in found.train[::2] and "def f(): ..." not in [
        *found.val[::2],
        *found.test[::2],
    ]
    assert len(found.val) == len(found.test) == 2
    with pytest.raises(
        BadInput, match="file repeats its sources: no pair is left for the val split"
    ):
        corpus_of(same)


# ------------------------------------------------------------------ the user's


def test_reads_tsv_and_jsonl(tmp_path):
    tsv, jsonl = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    tsv.write_bytes(
        "\ufeffsource\ttarget\nun\tone\r\n\ndeux \u2028\ttwo\x0b\ntrois\tthree".encode()
    )
    rows = [{"source": "a\tb", "target": "c\nd", "more": 1}, {"source": "x", "target": "y"}]
    jsonl.write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"source":"z","target":"z"}'
    )
    assert CORPORA["pairs"].files(f"{tmp_path}/*.*") == [tsv, jsonl]
    texts = CORPORA["pairs"].texts({"train": [tsv, jsonl]})
    assert dict(pairs_of([*texts.train, *texts.val, *texts.test])) == {
        "un": "one", "deux \u2028": "two\x0b", "trois": "three", "a\tb": "c\nd", "x": "y", "z": "z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("a.tsv", "no tab", "line 3 has 1 field; allowed: 2, source, target"),
        ("a.tsv", "\tb", "line 3 has an empty source"),
        ("a.tsv", "a\t ", "line 3 has an empty target"),
        ("a.jsonl", "[" * 200_000, "line 2 is not JSON: maximum recursion"),
        ("a.jsonl", "{", "line 2 is not JSON: Expecting"),
        ("a.jsonl", "[]", "line 2 has no source and target; allowed:"),
        ("a.jsonl", '{"source": "a", "target": []}', "line 2 has a target that is not a string"),
        ("a.jsonl", '{"source": "\\ud800", "target": "b"}', "line 2 has a source that is not valid text: surrogates"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_by_its_number(tmp_path, name, line, says):
    good, head = '{"source": "a", "target": "b"}', ""
    if name.endswith("tsv"):
        good, head = "a\tb", "source\ttarget\n"
    file = tmp_path / name
    file.write_text(f"{head}{good}\n{line}\n{good}\n")
    with pytest.raises(BadInput) as error:
        read("pairs", file)
    assert len(error.value.problems) == 1
    assert says in str(error.value) and str(error.value).startswith(
        f"{file}:{says.split()[1]}: "
    )


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.tsv", "", "a.tsv is empty"),
        ("a.jsonl", "\n\n", "a.jsonl is empty"),
        ("a.tsv", "source\ttarget\na\tb\na\tc\n", "2 pairs from 1 source: too few for three splits; allowed: at least"),
        ("a.csv", "a,b\n1,2\n", r"a.csv:2: there is no source and target, but a, b; allowed: data.field"),
    ],
)  # fmt: skip
def test_a_file_without_pairs_to_learn_from_is_one_line(tmp_path, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(BadInput, match=says) as error:
        read("pairs", file)
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------ docstrings

SOURCE = '''
class Box:
    """Hold things."""

    @property
    def size(self):
        """Say how many
        there are.

        And more.
        """

        # They are counted.
        return len(self.things)

    async def empty(
        self,
    ):
        "Throw all away."
        self.things = []

    def undocumented(self):
        return 1

    def nothing(self):
        """Do nothing."""

def one_line(): "Say one."; return 1

def with_code_behind():
    "Say one."; return 1

def outer():
    r"""Make a \\d."""
    def inner():
        """Be inside."""
        return "é"
    return inner
'''


def test_takes_functions_with_a_docstring_and_something_to_say_it_of():
    found = dict(functions_of(SOURCE))
    assert found == {
        "def size(self):\n    # They are counted.\n    return len(self.things)": "Say how many",
        "async def empty(\n    self,\n):\n    self.things = []": "Throw all away.",
        'def outer():\n    def inner():\n        """Be inside."""\n        return "é"\n    return inner': "Make a \\d.",
        'def inner():\n    return "é"': "Be inside.",
    }
