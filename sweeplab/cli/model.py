"""Models, data and hyperparameters seen without training: `model params`, `trace`, `coordinates`, `data`, `schema` …"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import (
    Answer,
    console,
    print_json,
    print_rows,
    progress,
    say,
    say_start,
    say_warnings,
)
from sweeplab.errors import BadInput, Problem, conflict, nearest
from sweeplab.formatting import on_one_line, several, yaml_text
from sweeplab.hyperparameters import CATEGORIES, MINIMAL, TABLE, Hyperparameter
from sweeplab.records.folders import lab_folder
from sweeplab.study.file.template import range_in_words

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec


def params(
    models: Annotated[
        list[str] | None, argument("[FILE or PRESET]...", "Study files and presets, compared side by side.")
    ] = None,
    preset: options.Preset = None,
    override: options.Overrides = None,
    cell: options.OneCell = None,
) -> Answer:
    """Count a model's parameters, part by part.

    Each part is shown with its formula, per layer and in total. Without a file or preset,
    the model has the default hyperparameters.

    \b
    $ sweeplab model params --preset gpt2
    $ sweeplab model params gpt2 llama-7b mistral-7b
    $ sweeplab model params --preset transformer-base -o vocab_size=30000
    $ sweeplab model params studies/small.yaml --json
    """
    from sweeplab.runs.models import model_of, models_of
    from sweeplab.study.spec import preset_names

    named = models or []
    if named and preset:
        raise BadInput(conflict("FILE", "--preset", "one of them; a file may have `preset: NAME`"))
    if cell and not named:
        raise BadInput(Problem("--cell needs a study file", "FILE --cell CELL"))
    counts = []
    for source in named:
        if source in preset_names() and not Path(source).exists():
            counts.append(model_of(source, override or ()))
        else:
            counts += models_of(Path(source), override or (), cell)
    if not named:
        counts.append(model_of(preset, override or ()))
    counted = [count.as_dict() for count in counts]
    if len(counted) == 1:
        return counted[0], _print_parts
    if len(named) > 1:
        return {"models": counted}, _print_side_by_side
    return {"cells": counted}, _print_cells


def _print_side_by_side(counted: dict[str, Any]) -> None:
    models = counted["models"]
    names = list(dict.fromkeys(name for model in models for name in model["components"]))
    counts = [{**model["components"], "total": model["total"]} for model in models]
    rows = [
        {"component": name}
        | {
            model["model"]: f"{count[name]:,} {count[name] / model['total']:6.1%}" if name in count else ""
            for model, count in zip(models, counts, strict=True)
        }
        for name in [*names, "total"]
    ]
    print_rows(rows, text=("component",))


def _print_parts(counted: dict[str, Any]) -> None:
    say(f"{counted['model']}: {several(counted['total'], 'parameter')}")
    if counted["active"] < counted["total"]:
        say(f"{counted['active']:,} of them active: a token uses only the experts that it is routed to")
    say()
    parts = [
        {
            "part": part["component"],
            "of": part["place"],
            "formula": part["formula"],
            "each": f"{part['each']:,}",
            "layers": part["layers"],
            "parameters": f"{part['parameters']:,}",
        }
        for part in counted["parts"]
    ]
    print_rows(parts, text=("part", "of", "formula"))
    say()
    shares = [
        {"component": name, "parameters": f"{count:,}", "share": f"{count / counted['total']:.1%}"}
        for name, count in {**counted["components"], "total": counted["total"]}.items()
    ]
    print_rows(shares, text=("component",))
    say()
    say(", ".join(f"{letter} {name} {size:,}" for letter, (name, size) in counted["letters"].items()))
    for note in counted["notes"]:
        say(note)


def _print_cells(counted: dict[str, Any]) -> None:
    names = dict.fromkeys(name for model in counted["cells"] for name in model["components"])
    rows = [
        {
            "cell": model["model"],
            **{name: f"{model['components'].get(name, 0):,}" for name in names},
            "total": f"{model['total']:,}",
        }
        for model in counted["cells"]
    ]
    print_rows(rows, text=("cell",))


def trace(
    run: Annotated[
        str | None, argument("[RUN]", "A run: STUDY, STUDY/CELL/TRIAL-SEED, an MLflow run id, or a folder.")
    ] = None,
    preset: options.Preset = None,
    override: options.Overrides = None,
    prompt: Annotated[str | None, option("TEXT", "Text that the run reads, instead of --token.")] = None,
    token: Annotated[int, option("ID", "The token's id.")] = 0,
    position: Annotated[
        int | None, option("N", "The token's position, from 0.  [default: 0, or the prompt's last]")
    ] = None,
    layer: Annotated[int | None, option("N", "Only the steps of one layer, from 0.", min=0)] = None,
    source_length: Annotated[int | None, option("N", "Tokens that an encoder reads.  [default: 10]")] = None,
    seed: Annotated[int, option("N", "Seed of the other tokens and, without a run, the weights.", min=0)] = 0,
    values: Annotated[int, option("N", "Numbers to show per step.", min=1)] = 5,
    lab: options.Lab = None,
) -> Answer:
    """Follow one token through a model, step by step.

    Each step shows its tensor's shape and the first numbers of the token's row, in float64. Among the steps are
    the attention scores before the softmax, the weights after it, and last the softmax over the vocabulary.
    Without a run the weights are random.

    \b
    $ sweeplab model trace --preset transformer-base --token 42 --source-length 10
    $ sweeplab model trace small --prompt "The print" --layer 0
    $ sweeplab model trace small --token 42 --position 3 --json
    """
    from sweeplab.runs import open_run
    from sweeplab.runs.models import model_of, started

    if run and (preset or override):
        raise BadInput(conflict("RUN", "--preset" if preset else "-o"))
    if prompt is not None and not run:
        raise BadInput(Problem("--prompt needs a run, for its tokenizer", "RUN --prompt TEXT"))
    likeliest: list[dict[str, Any]] = []
    if run:
        opened, where = open_run(run, lab_folder(lab)), "its weights"
        name, shape, weights = opened.run_id, opened.model.shape, opened.model.weights
    else:
        model, where = model_of(preset, override or ()), f"random weights, seed {seed}"
        name, shape, weights = model.name, model.shape, started(model, seed)
    if prompt is not None:
        from sweeplab.runs.inspecting import traced_prompt

        steps, likeliest = traced_prompt(opened, prompt, position, values)
        of: dict[str, Any] = {"prompt": prompt}
        read = repr(prompt)
        if position is not None:
            of["position"] = position
            read += f" at position {position}"
    else:
        from sweeplab.model.tracing import trace_token

        traced = trace_token(shape, weights, token, position or 0, source_length, seed, values)
        steps = [each._asdict() for each in traced]
        of = {"token": token, "position": position or 0, "seed": seed}
        read = f"token {token} at position {of['position']}"
    if layer is not None:
        steps = [each for each in steps if f"blocks.{layer}." in each["name"]]
        if not steps:
            raise BadInput(Problem(f"there is no layer {layer}", f"0 to {shape.n_layer - 1}"))

    def print_steps(trace: dict[str, Any]) -> None:
        say(f"{name}: {read}, {where}\n")
        rows = [
            {
                "step": step["name"],
                "shape": " x ".join(map(str, step["shape"])),
                "values": " ".join(f"{each:9.4f}" for each in step["values"]),
            }
            for step in trace["steps"]
        ]
        print_rows(rows, text=("step", "values"))
        if likeliest:
            words = ", ".join(f"{each['word']} {each['probability']:.1%}" for each in likeliest)
            say(f"\nmost probable tokens there: {words}")

    answer = {"model": name, **of, "steps": steps}
    if likeliest:
        answer["likeliest"] = likeliest
    return answer, print_steps


def coordinates(
    file: options.StudyFile,
    override: options.Overrides = None,
    cell: Annotated[
        str | None,
        option("CELL", "The cell, if cells differ in more than the width.", autocompletion=options.cells),
    ] = None,
    widths: Annotated[
        str | None, option("N,…", "Values of n_embd.  [default: 1, 2, 4 and 8 times mup_base_width]")
    ] = None,
    steps: Annotated[int, option("N", "Steps to train at each width.", min=1, max=1000)] = 4,
    output: Annotated[
        Path | None, option("FILE", "The page.  [default: LAB/reports/coordinates.html]")
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Check how activations grow with width.

    muP's coordinate check: the study's model trains for a few steps at each width, in the standard and the
    mup parametrization. Where activations stay flat, a small model's learning rate suits a large one.

    \b
    $ sweeplab model coordinates studies/small.yaml --cell n_layer=2
    $ sweeplab model coordinates FILE --widths 64,256 -o learning_rate=0.003
    """
    from sweeplab.report.models import steepest_in_words, write_coordinates
    from sweeplab.runs.models import check_coordinates

    allowed = "whole numbers above 0, such as 64,128,256"
    asked = options.whole_numbers("--widths", widths, allowed) if widths is not None else []
    with progress() as update:
        checked = check_coordinates(file, override or (), cell, asked, steps, update)
    page = output or lab_folder(lab) / "reports" / "coordinates.html"
    write_coordinates(checked, page)
    powers = [
        {"parametrization": name, "step": step, "layer": layer, "power": power}
        for (name, step, layer), power in checked.powers.items()
    ]
    sizes = [row._asdict() for row in checked.rows]
    answer = {"output": str(page), "study": checked.study, "values": checked.values}
    steepest = [f"{name}: {words}" for name, words in steepest_in_words(checked)]
    lines = "\n".join([*steepest, f"{page} written"])
    return answer | {"sizes": sizes, "powers": powers}, lines


def data(
    file: Annotated[str, argument("FILE", "A file, folder or glob, files of tokens, or a study file.")],
    field: Annotated[
        str | None, option("NAME", "Field of the text in rows; of pairs two, as FROM,TO.")
    ] = None,
    corpus: Annotated[
        str | None, option("NAME", "Corpus: text, pairs or labels.  [default: by what the files have]")
    ] = None,
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
    unit = "document" if read["kind"] == "text" else "pair"
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
        say(line[:100] + ("…" if len(line) > 100 else ""))
    say_warnings(read["warnings"])


def hyperparameters(
    category: Annotated[str | None, option("NAME", "Only the rows of this category.")] = None,
    minimal: Annotated[bool, flag("Only the eight that matter most.", "--minimal")] = False,
    as_json: Annotated[bool, flag("Print JSON: one object per row.", "--json")] = False,
    markdown: Annotated[bool, flag("Print a Markdown table.", "--markdown")] = False,
) -> None:
    """Print the table of hyperparameters.

    Each row has a sample value, the suggested search range, and the meaning.

    \b
    $ sweeplab hyperparameters --category model
    """
    if as_json and markdown:
        raise BadInput(conflict("--json", "--markdown"))
    rows = [row for row in TABLE.values() if not minimal or row.name in MINIMAL]
    if category:
        names = {name.lower(): key for key, title in CATEGORIES.items() for name in (key, title)}
        if category.lower() not in names:
            what, known = f"unknown category {category!r}", ", ".join(CATEGORIES)
            raise BadInput(Problem(what, known, nearest(category, names)))
        rows = [row for row in rows if row.category == names[category.lower()]]
    if as_json:
        print_json([asdict(row) | {"default": row.default, "allowed": row.allowed} for row in rows])
    elif markdown:
        typer.echo(_markdown(rows))
    else:
        _print_table(rows)


def schema() -> None:
    """Print the JSON Schema of study files.

    Editors use it for completion; the shipped studies name it as their schema.

    \b
    $ sweeplab schema > studies/.schema.json
    """
    from sweeplab.study.file.schema import study_schema

    typer.echo(json.dumps(study_schema(), indent=2))


def _markdown(rows: list[Hyperparameter]) -> str:
    headings = ("Category", "Parameter", "Sample Value", "Allowed", "Suggested", "Meaning")
    lines = [tuple(f"**{heading}**" for heading in headings), ("---",) * len(headings)]
    for row in rows:
        value = "*(auto from tokenizer)*" if row.name == "vocab_size" else f"`{_python(row.sample)}`"
        cells = (f"`{row.name}`", value, row.allowed, range_in_words(row.suggested), row.meaning)
        lines.append((CATEGORIES[row.category], *(cell.replace("|", "\\|") for cell in cells)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _print_table(rows: list[Hyperparameter]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    name = Column("Parameter", style="cyan", no_wrap=True)
    table = Table(name, "Sample value", "Suggested", "Meaning", box=None, header_style="bold", pad_edge=False)
    for category, members in groupby(rows, lambda row: row.category):
        if table.row_count:
            table.add_row()
        table.add_row(Text(CATEGORIES[category], "bold"))
        for row in members:
            default = f", default {yaml_text(row.default)}" if row.default != row.sample else ""
            unit = f" ({row.unit})" if row.unit not in row.meaning.lower() else ""
            cells = (f"{_python(row.sample)}{default}", range_in_words(row.suggested), f"{row.meaning}{unit}")
            table.add_row(f"  {row.name}", *cells)
    console().print(table)


def _python(value: Any) -> str:
    """Write a value as Python does, but floats as people do, and with double quotes: 3e-4, "cosine"."""
    if isinstance(value, float):
        return yaml_text(value)
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)
