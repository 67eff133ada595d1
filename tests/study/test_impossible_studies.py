"""What cannot be is said at plan time: in one line, with file, line and reason."""

import pytest
from tiny_study import problem_of

from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan

CHAR = "corpus: python-docs, tokenizer: char"
# What is wrong: the data's line, the line of fixed, the line that is named, the reason, and what is allowed.
IMPOSSIBLE = {
    "span corruption without an encoder": (CHAR, "objective: span", 3, "objective suits family", ""),
    "fewer symbols than the corpus has": (CHAR, "vocab_size: 50", 3, "vocab_size >= ", ""),
    "heads that do not divide the width": (CHAR, "n_head: 3", 3, "n_embd % n_head == 0", ""),
    "no room for the mask": ("corpus: python-docs, tokenizer: byte", "vocab_size: 256, family: encoder", 3,
                             "vocab_size >= 256 + special tokens", ""),
    "fewer tokens than bytes": (
        "corpus: python-docs, tokenizer: bpe, vocab_size: 10", "", 2, "allowed: 256 (the bytes) to 65,536", ""
    ),
    "a number for a tokenizer that learns none": (f"{CHAR}, vocab_size: 100", "", 2, "takes no vocab_size", ""),
    "empty pairs": ("corpus: pairs, path: empty.tsv, tokenizer: char", "", 2, "empty.tsv is empty", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_is_one_line_at_its_place(case, tmp_path):
    data, fixed, line, reason, allowed = IMPOSSIBLE[case]
    (tmp_path / "empty.tsv").write_text("\n")
    file = tmp_path / "study.yaml"
    sizes = ", ".join(["n_embd: 40, block_size: 32", *([fixed] if fixed else [])])
    file.write_text(f"name: a\ndata: {{{data}}}\nfixed: {{{sizes}}}\n")
    overrides = ["n_layer=1", *([] if "n_head" in fixed else ["n_head=4"])]
    said = problem_of(lambda: make_plan(read_study(file, overrides), tmp_path / "lab"))
    assert said.startswith(f"{file}:{line}:") and reason in said
    assert (
        said.endswith(f"; allowed: {allowed}") if allowed else "traceback" not in said.lower()
    )


def test_choices_that_no_trial_can_have_are_named(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(
        f"name: a\ndata: {{{CHAR}}}\nfixed: {{n_embd: 64}}\nsearch: {{n_head: [5, 6, 7]}}\n"
    )
    said = problem_of(lambda: make_plan(read_study(file), tmp_path / "lab"))
    assert (
        said
        == f"{file}:4:10: no trial of cell all meets 'n_embd % n_head == 0' where n_embd is 64"
    )


@pytest.mark.parametrize(
    "data", ["tokenizer: bpe, vocab_size: 100", "tokenizer: char, vocab_size: 9"]
)
def test_a_wrong_vocabulary_is_named_where_it_stands(data, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(
        f"name: a\ndata:\n  corpus: python-docs\n  {data.replace(', ', chr(10) + '  ')}\n"
    )
    with pytest.raises(BadInput, match=r"study.yaml:5:3: "):
        make_plan(read_study(file), tmp_path / "lab")


def test_bad_lines_of_pairs_are_named_where_they_stand(tmp_path):
    """Of three files nobody could tell by the study's line which one is meant."""
    for name in "abc":
        (tmp_path / f"{name}.tsv").write_text("source\ttarget\nx\ty\n")
    (tmp_path / "b.tsv").write_text("source\ttarget\nx\ty\n" + "no tab\n" * 30)
    file = tmp_path / "study.yaml"
    file.write_text("name: a\ndata: {corpus: pairs, path: '*.tsv', tokenizer: char}\n")
    with pytest.raises(BadInput) as refused:
        make_plan(read_study(file), tmp_path / "lab")
    first, *_, last = refused.value.lines
    assert first.startswith(f"{tmp_path / 'b.tsv'}:3: line 3 has 1 field; allowed: 2")
    assert last.endswith("more problems")
