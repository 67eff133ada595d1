"""`sweeplab data`: a look at data of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.options import argument, option
from sweeplab.cli.printing import Answer, print_rows, say, say_start, say_warnings
from sweeplab.formatting import on_one_line, several

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

LONGEST_SAMPLE = 100
Field = Annotated[str | None, option("NAME", "Field of the text in rows; of pairs two, as FROM,TO.")]
Corpus = Annotated[
    str | None, option("NAME", "Corpus: text, pairs or labels.  [default: by what the files have]")
]


def data(
    file: Annotated[str, argument("FILE", "A file, folder or glob, files of tokens, or a study file.")],
    field: Field = None,
    corpus: Corpus = None,
    format: Annotated[
        str | None,
        option("NAME", "Format: text, jsonl, json, csv, tsv, parquet or arrow.  [default: the file's]"),
    ] = None,
    encoding: Annotated[str | None, option("NAME", "Encoding of the texts.  [default: UTF-8]")] = None,
    tokenizer: Annotated[
        str | None,
        option("NAME", "Tokenizer: char, bpe, …, or a file.  [default: char below 1 MB, else bpe]"),
    ] = None,
) -> Answer:
    """Show what is read of your data, without training.

    It shows documents, characters, tokens by tokenizer, three samples, the splits and what they have in common. The
    options are the keys of `data` in a study file.

    \b
    $ sweeplab data notes.txt
    $ sweeplab data reviews.csv --corpus labels --field review,stars
    """
    say_start(f"reading {file}")
    from sweeplab.sweep.beginning import look_at, spec_of

    fields: Any = field.split(",") if field and "," in field else field
    spec = spec_of(file, field=fields, corpus=corpus, format=format, encoding=encoding, tokenizer=tokenizer)
    return look_at(spec), lambda read: _print_data(spec, read)


def _print_data(spec: StudySpec, read: dict[str, Any]) -> None:
    unit = {"text": "document"}.get(read["kind"], "pair")
    counts = {unit: read["n_documents"], "character": read["n_characters"]}
    words = [several(count, noun) for noun, count in counts.items() if count]
    say(f"{spec.data.corpus}: {', '.join(words) or 'tokens'}")
    for note in read.get("notes", ()):
        say(note, "dim")
    say()
    for row in read["tokenizers"]:
        row["characters_per_token"] = row["characters_per_token"] and round(row["characters_per_token"], 2)
    print_rows(read["tokenizers"], text=("tokenizer",))
    sizes = ", ".join(f"{name} {count:,}" for name, count in read["splits"].items())
    say(f"\nsplits, in tokens of {spec.data.tokenizer}: {sizes}")
    left_out = f"; {several(read['n_duplicates'], 'near-duplicate')} left out" if read["n_duplicates"] else ""
    say(f"{read['val_overlap']:.1%} of val and {read['test_overlap']:.1%} of test occur in train{left_out}\n")
    for sample in read["samples"]:
        line = on_one_line(sample)
        say(line if len(line) <= LONGEST_SAMPLE else f"{line[:LONGEST_SAMPLE]}…")
    say_warnings(read["warnings"])
