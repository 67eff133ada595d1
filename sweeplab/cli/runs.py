"""Commands on a trained run: generate, predict, evaluate, `model attention`, `model next`, folders of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import Answer, print_answer, print_json, print_rows
from sweeplab.errors import BadInput, Problem, conflict
from sweeplab.files import check_is_path
from sweeplab.formatting import several
from sweeplab.records.folders import lab_folder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.runs import check_imported_name, imported_folder, open_run

LONGEST_SHOWN = 60  # characters of a text beside its label


def generate(
    run: options.Run,
    prompt: options.Prompt,
    temperature: Annotated[
        float | None,
        option("T", "Flatten (above 1) or sharpen (below 1; 0 is --greedy).  [default: the run's]"),
    ] = None,
    top_k: Annotated[int | None, option("K", "Sample from the K best tokens.  [default: the run's]")] = None,
    top_p: Annotated[
        float | None,
        option("P", "Sample from the best tokens of this total probability.  [default: the run's]"),
    ] = None,
    greedy: Annotated[bool, flag("Take the best token each time.", "--greedy")] = False,
    beams: Annotated[int | None, option("N", "Search the most probable text with N beams.", min=1)] = None,
    seed: Annotated[int | None, option("SEED", "Sampling seed.  [default: 0]", min=0, max=2**63 - 1)] = None,
    max_new_tokens: Annotated[
        int | None, option("N", "Generate at most N tokens.  [default: the run's]")
    ] = None,
    contrast: Annotated[
        str | None, option("RUN", "Decode contrastively against this smaller run with the same tokenizer.")
    ] = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
    as_json: options.AsJson = False,
) -> None:
    """Generate text with a trained run, token by token.

    A decoder continues the prompt for --max-new-tokens tokens. An encoder fills each [MASK] with one
    token, the most certain first; a model trained on spans fills it with several. A model trained on
    pairs writes the target of the prompt, up to its end.

    \b
    $ sweeplab generate small --prompt "import " --greedy
    $ sweeplab generate small --prompt "def " --contrast small/n_layer=1,n_embd=32
    $ sweeplab generate masked --prompt "The [MASK] sat"
    """
    from sweeplab.hyperparameters import Hyperparameters
    from sweeplab.runs.generating import Writer, chosen

    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for name, value in {**drawn, "seed": seed, "greedy": greedy or None}.items():
        if beams is not None and value is not None:
            raise BadInput(conflict(f"--{name.replace('_', '-')}", "--beams"))
    settings = {**drawn, "max_new_tokens": max_new_tokens}
    chosen(Hyperparameters(), settings)  # refuses values out of range before anything is loaded
    place = lab_folder(lab)
    opened = open_run(run, place, allow_plugins=allow_plugins)
    amateur = open_run(contrast, place) if contrast is not None else None
    writer = Writer(opened, prompt, *chosen(opened.values, settings, greedy), seed=seed or 0, amateur=amateur)
    answer: dict[str, Any] = {"run": writer.run.run_id, "prompt": writer.text}
    if beams is not None:
        texts = writer.beams(beams)
        print_answer((answer | {"beams": texts}, texts[0]["text"]), as_json)
    elif as_json:
        tokens = list(writer.tokens())
        print_json(answer | {"seed": writer.seed, "tokens": tokens, "text": "".join(writer.words(tokens))})
    else:
        for piece in writer.words(writer.tokens()):
            print(piece, end="", flush=True)
        print(flush=True)


def predict(
    run: options.Run,
    texts: Annotated[list[str] | None, argument("[TEXT]...", "Texts to predict.")] = None,
    file: Annotated[
        Path | None, option("FILE", "A file of texts, one per line, or - for standard input.")
    ] = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Predict the labels of texts, or how probable texts are.

    A classifier gives each text's label with its probability; --json has the probability of every label. A language
    model gives the loss of each text in nats per token, its perplexity and its bits per byte; --json has the
    log-probability of every token. As in transformers, the first token has none, because no token is before it. A
    text beyond block_size is read in windows, as val_loss is measured. An encoder predicts each token from all
    others; a model trained on pairs predicts what stands after a tab from what stands before it.

    \b
    $ sweeplab predict small "import os"
    $ sweeplab predict reviews "A film to remember." "Two hours lost."
    $ sweeplab predict reviews --file texts.txt --json
    """
    import sys

    from sweeplab.data.corpora.base import document

    asked = [*(texts or ())]
    if file is not None:
        lines = sys.stdin.read() if str(file) == "-" else document(file)
        asked += [line for line in lines.splitlines() if line.strip()]
    if not asked:
        raise BadInput(Problem("there is no text", "RUN TEXT…, or --file FILE"))
    opened = open_run(run, lab_folder(lab), allow_plugins=allow_plugins)
    rows = opened.predict(asked)
    return {"run": opened.run_id, "texts": rows}, lambda _: _print_predictions(rows)


def _print_predictions(rows: Sequence[dict[str, Any]]) -> None:
    numbers = []
    for answer in [word for row in rows for word in row.get("words", ())] or rows:
        row = {name: value for name, value in answer.items() if isinstance(value, float | str)}
        text = str(row.pop("text", ""))
        if text:
            row["text"] = text[:LONGEST_SHOWN] + ("…" if len(text) > LONGEST_SHOWN else "")
        numbers.append(row)
    print_rows(numbers, text=("word", "label", "text"))


def evaluate(
    run: options.Run,
    lengths: Annotated[str, option("N,…", "Lengths of the sequences, as multiples of block_size.")] = "1,2,4",
    study: Annotated[
        str | None, option("NAME", "Study to take the validation split from.  [default: the run's]")
    ] = None,
    report: Annotated[Path | None, option("PAGE.html", "Also write a page with loss by position.")] = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Evaluate a trained run, also on longer sequences.

    Losses are given by position too. Sequences longer than block_size need positions without a maximum, such as
    rotary, alibi, relative, sinusoidal or none. A run that kept its best checkpoint is evaluated with it.

    \b
    $ sweeplab evaluate small --lengths 1,2,4 --report positions.html
    """
    from sweeplab.runs.inspecting import evaluated

    times = options.whole_numbers(
        "--lengths", lengths, "whole numbers from 1 to 64, such as 1,2,4", largest=64
    )
    evaluation = evaluated(run, lab_folder(lab), times, study, allow_plugins)
    if report:
        from sweeplab.report.models import write_evaluation

        write_evaluation(evaluation, report)
        evaluation |= {"report": str(report)}
    return evaluation, _print_evaluation


def _print_evaluation(evaluation: dict[str, Any]) -> None:
    print(f"validation split of study {evaluation['study']}; val_loss {MEASURED_ON['val_loss']}")
    rows = [{"measure": name, "value": value} for name, value in evaluation["measures"].items()]
    print_rows(rows, text=["measure"])
    lengths = evaluation["length_extrapolation"]
    if lengths:
        print()
        print_rows(lengths, text=(), keys=[name for name in lengths[0] if name != "by_position"])
        print("\nmean loss by position")
        losses = {f"{row['times']}x": row["by_position"] for row in lengths}
        print_rows(_by_stretch(losses, max(1, evaluation["block_size"] // 4)), text=["positions"])
    for length in evaluation["left_out"]:
        print(f"\nno loss at {several(length['times'], 'time')} block_size: {length['why']}")
    if "report" in evaluation:
        print(f"\n{evaluation['report']} written")


def _by_stretch(losses: dict[str, list[float]], width: int) -> list[dict[str, Any]]:

    def mean(losses: list[float]) -> float | None:
        known = [loss for loss in losses if math.isfinite(loss)]
        return sum(known) / len(known) if known else None

    known = (at for of_length in losses.values() for at, loss in enumerate(of_length) if math.isfinite(loss))
    end = 1 + max(known, default=0)
    return [
        {"positions": f"{start}–{min(start + width, end) - 1}"}
        | {name: mean(of_length[start : start + width]) for name, of_length in losses.items()}
        for start in range(0, end, width)
    ]


def attention(
    run: options.Run,
    prompt: Annotated[str, option("TEXT", "Text that the run reads.")],
    layer: Annotated[int | None, option("N", "Only this layer, from 0.")] = None,
    head: Annotated[int | None, option("N", "Only this head, from 0.")] = None,
    output: Annotated[Path | None, option("FILE", "The page.  [default: LAB/reports/attention.html]")] = None,
    lab: options.Lab = None,
) -> Answer:
    """Draw a run's attention over a text.

    The page has one panel per layer with one matrix per head, and the numbers below. An encoder-decoder
    first generates a target for the prompt; its cross-attention is drawn too.

    \b
    $ sweeplab model attention small --prompt "The print function" --layer 0
    """
    from sweeplab.report.models import write_attention
    from sweeplab.runs.inspecting import attention_maps

    opened = open_run(run, lab_folder(lab))
    maps = attention_maps(opened, prompt, layer, head)
    file = output or lab_folder(lab) / "reports" / "attention.html"
    write_attention(opened.run_id, prompt, maps, file)
    plain = [{**vars(each), "heads": list(each.heads), "weights": each.weights.tolist()} for each in maps]
    return {"output": str(file), "run": opened.run_id, "maps": plain}, f"{file} written"


def next_tokens(
    run: options.Run,
    prompt: options.Prompt,
    most: Annotated[int, option("N", "Number of tokens to show.", min=1)] = 10,
    lab: options.Lab = None,
) -> Answer:
    """Rank the most probable tokens after a prompt.

    For an encoder these are the tokens in each [MASK] of the prompt; for a model trained on spans, the first
    token in the first [MASK]; for a model trained on pairs, the first of the target. The temperature is 1.

    \b
    $ sweeplab model next small --prompt "import "
    $ sweeplab model next masked --prompt "The [MASK] sat" --most 3 --json
    """
    from sweeplab.runs.generating import Writer, chosen

    opened = open_run(run, lab_folder(lab))
    ranked = Writer(opened, prompt, *chosen(opened.values, {})).ranked(most)
    several = len(ranked) > 1
    rows = [
        {
            "[MASK]": mask if several else None,
            "rank": rank,
            "token": repr(row["token"]),
            "probability": f"{row['probability']:.4f}",
            "id": str(row["id"]),
        }
        for mask, place in enumerate(ranked, start=1)
        for rank, row in enumerate(place, start=1)
    ]
    answer: dict[str, Any] = {"run": opened.run_id, "prompt": prompt}
    answer |= {"places": ranked} if several else {"tokens": ranked[0]}
    return answer, lambda _: print_rows(rows, text=("token",))


def export_hf(
    run: options.Run,
    folder: Annotated[Path, argument("DIR", "Folder to write.")],
    force: options.Force = False,
    lab: options.Lab = None,
) -> Answer:
    """Export a run as a folder for Hugging Face transformers.

    It is written for the class that can express it: GPT-2, Llama, Mistral, Mixtral, BERT, T5 or BART.

    \b
    $ sweeplab export-hf small small-hf
    """
    from sweeplab.hf.folders import export_run, without_class

    opened = open_run(run, lab_folder(lab))
    name, note = export_run(opened, folder, force).class_name, without_class(opened)
    lines = f"wrote {folder}, a {name}\nnext: transformers.{name}.from_pretrained({str(folder)!r})"
    answer = {"folder": str(folder), "class": name}
    if note:
        answer["note"], lines = note, f"{lines}\n{note}"
    return answer, lines


def import_hf(
    folder: Annotated[Path, argument("DIR", "Folder with config.json and safetensors.")],
    name: Annotated[str | None, option("NAME", "The run's name.  [default: the folder's]")] = None,
    force: options.Force = False,
    lab: options.Lab = None,
) -> Answer:
    """Import a folder of Hugging Face transformers as a run.

    The run is stored in `imported` in the lab. Other commands take its name as RUN, studies as `init_from`.

    \b
    $ sweeplab import-hf gpt2 --name gpt2
    """
    from sweeplab.hf.folders import import_folder

    check_is_path(str(folder))
    place, name = lab_folder(lab), name or folder.resolve().name
    check_imported_name(place, name)
    target = imported_folder(place, name)
    imported = import_folder(folder, target, name, force)

    def print_imported(_: Any) -> None:
        size = several(imported.n_params, "parameter")
        typer.echo(f"wrote {target}: {imported.family}, {size}, tokenizer {imported.tokenizer}")
        if imported.without:
            typer.echo(f"{imported.without}: its texts are token ids, such as '12 7 304'", err=True)

    return {"run": name, "folder": str(target), **asdict(imported)}, print_imported
