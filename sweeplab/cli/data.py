"""Data and hyperparameters without training: `sweeplab data` and `hyperparameters`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import Answer, print_rows, say, say_start, say_warnings
from sweeplab.cli.study.plan import overlap
from sweeplab.formatting import on_one_line, several, yaml_text
from sweeplab.hyperparameters import TABLE

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


def data(
    file: Annotated[
        str, argument("FILE", "A file, folder or glob, files of tokens, or a study file.")
    ],
    field: Annotated[
        str | None, option("NAME", "Field of the text in rows; of pairs two, as FROM,TO.")
    ] = None,
    corpus: Annotated[
        str | None,
        option("NAME", "Corpus: text, pairs or labels.  [default: by what the files have]"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option(
            "NAME", "Tokenizer: char, bpe, …, or a file.  [default: char below 1 MB, else bpe]"
        ),
    ] = None,
) -> Answer:
    """Show what is read of your data, without training.

    It shows documents, characters, tokens, three samples, the splits and what they have in common. The options are
    keys of `data` in a study file, which has more.

    \b
    $ sweeplab data notes.txt
    $ sweeplab data reviews.csv --corpus labels --field review,stars
    """
    say_start(f"reading {file}")
    from sweeplab.sweep.planning import look_at, spec_of

    fields: Any = field.split(",") if field and "," in field else field
    spec = spec_of(file, field=fields, corpus=corpus, tokenizer=tokenizer)
    return look_at(spec), lambda read: _print_data(spec, read)


def _print_data(spec: StudySpec, read: dict[str, Any]) -> None:
    unit = "document" if read["kind"] == "text" else "pair"
    counts = {unit: read["n_documents"], "character": read["n_characters"]}
    words = [several(count, noun) for noun, count in counts.items() if count]
    say(f"{spec.data.corpus}: {', '.join(words) or 'tokens'}")
    for note in read.get("notes", ()):
        say(note, "dim")
    say()
    if read["characters_per_token"]:
        say(
            f"vocabulary of {read['vocab_size']}, {read['characters_per_token']:.2f} characters a token"
        )
    sizes = ", ".join(f"{name} {count:,}" for name, count in read["splits"].items())
    say(f"splits, in tokens of {spec.data.tokenizer}: {sizes}")
    say(f"{overlap(read['val_overlap'], read['test_overlap'], read['n_duplicates'])}\n")
    for sample in read["samples"]:
        say(on_one_line(sample)[:100])
    say_warnings(read["warnings"])


def hyperparameters(
    schema: Annotated[
        bool, flag("Print the JSON Schema of study files, for editors.", "--schema")
    ] = False,
) -> Answer:
    """Print the table of hyperparameters.

    Each row has a sample value, the suggested search range, and the meaning. The shipped studies name the schema that
    --schema prints: with it an editor completes and checks study files.

    \b
    $ sweeplab hyperparameters
    $ sweeplab hyperparameters --schema > studies/.schema.json
    """
    if schema:
        from sweeplab.study.file.template import study_schema

        read = study_schema()
        return read, json.dumps(read, indent=2)
    plain = [
        asdict(row) | {"default": row.default, "allowed": row.allowed} for row in TABLE.values()
    ]
    return plain, lambda _: _print_table()


def _print_table() -> None:
    shown = []
    for row in TABLE.values():
        sample = yaml_text(row.sample)
        if row.default != row.sample:
            sample += f", default {yaml_text(row.default)}"
        meaning = row.meaning
        if row.unit not in meaning.lower():
            meaning += f" ({row.unit})"
        cells = {
            "parameter": row.name,
            "category": row.category,
            "sample value": sample,
            "suggested": row.suggested and yaml_text(row.suggested),
            "meaning": meaning,
        }
        shown.append(cells)
    print_rows(shown, text=("parameter", "sample value", "suggested", "meaning"))
