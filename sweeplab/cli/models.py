"""Commands on trained runs: generate, predict, evaluate, trace, folders of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from sweeplab.cli import options
from sweeplab.cli.options import argument, flag, option
from sweeplab.cli.printing import Answer, print_answer, print_json, print_rows
from sweeplab.errors import BadInput, Problem, conflict
from sweeplab.formatting import several
from sweeplab.records.folders import lab_folder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.runs import check_imported_name, imported_folder, open_run

SHOWN_VALUES = 5  # numbers of a step
LONGEST_SHOWN = 60  # characters of a text beside its label


def generate(
    run: options.Run,
    prompt: options.Prompt,
    temperature: Annotated[
        float | None,
        option(
            "T", "Flatten (above 1) or sharpen (below 1; 0 is --greedy).  [default: the run's]"
        ),
    ] = None,
    top_k: Annotated[
        int | None, option("K", "Sample from the K best tokens.  [default: the run's]")
    ] = None,
    top_p: Annotated[
        float | None,
        option(
            "P", "Sample from the best tokens of this total probability.  [default: the run's]"
        ),
    ] = None,
    greedy: Annotated[bool, flag("Take the best token each time.", "--greedy")] = False,
    beams: Annotated[
        int | None, option("N", "Search the most probable text with N beams.", min=1)
    ] = None,
    seed: Annotated[
        int | None, option("SEED", "Sampling seed.  [default: 0]", min=0, max=2**63 - 1)
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("N", "Generate at most N tokens.  [default: the run's]")
    ] = None,
    contrast: Annotated[
        str | None,
        option("RUN", "Decode contrastively against this smaller run with the same tokenizer."),
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
    writer = Writer(
        opened,
        prompt,
        *chosen(opened.values, settings, greedy),
        seed=seed or 0,
        amateur=amateur,
    )
    answer: dict[str, Any] = {"run": writer.run.run_id, "prompt": writer.text}
    if beams is not None:
        texts = writer.beams(beams)
        print_answer((answer | {"beams": texts}, texts[0]["text"]), as_json)
    elif as_json:
        tokens = list(writer.tokens())
        print_json(
            answer
            | {"seed": writer.seed, "tokens": tokens, "text": "".join(writer.words(tokens))}
        )
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
    text beyond block_size is read in windows, as val_loss is measured. A model trained
    on pairs predicts what stands after a tab from what stands before it.

    \b
    $ sweeplab predict small "import os"
    $ sweeplab predict reviews "A film to remember." "Two hours lost."
    $ sweeplab predict reviews --file texts.txt --json
    """
    import sys

    from sweeplab.data.formats import document

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
    study: Annotated[
        str | None,
        option("NAME", "Study to take the validation split from.  [default: the run's]"),
    ] = None,
    allow_plugins: options.AllowPlugins = False,
    lab: options.Lab = None,
) -> Answer:
    """Evaluate a trained run on its study's validation split.

    A run that kept its best checkpoint is evaluated with it.

    \b
    $ sweeplab evaluate small
    """
    from sweeplab.runs.inspecting import evaluated

    evaluation = evaluated(run, lab_folder(lab), study, allow_plugins)
    return evaluation, _print_evaluation


def _print_evaluation(evaluation: dict[str, Any]) -> None:
    print(
        f"validation split of study {evaluation['study']}; val_loss {MEASURED_ON['val_loss']}"
    )
    rows = [{"measure": name, "value": value} for name, value in evaluation["measures"].items()]
    print_rows(rows, text=["measure"])


def trace(
    run: options.Run,
    prompt: Annotated[str, option("TEXT", "Text that the run reads.")],
    top: Annotated[int, option("N", "Probable next tokens to show, of a prompt.", min=1)] = 5,
    page: Annotated[
        Path | None, option("FILE.html", "Draw the attention over the prompt on a page.")
    ] = None,
    lab: options.Lab = None,
) -> Answer:
    """Follow a token through a model, and rank what comes next.

    Each step shows its tensor's shape and the first numbers of the token's row, in float64. Among the steps are
    the attention scores before the softmax, the weights after it, and last the softmax over the vocabulary. For an
    encoder the ranked tokens are those of each [MASK]. The page has a matrix per head; an encoder-decoder first
    generates a target for the prompt, and its cross-attention is drawn too.

    \b
    $ sweeplab trace small --prompt "The print" --page attention.html
    """
    from sweeplab.runs.generating import Writer, chosen
    from sweeplab.runs.inspecting import attention_maps, traced_prompt

    opened = open_run(run, lab_folder(lab))
    steps = traced_prompt(opened, prompt, SHOWN_VALUES)
    writer = Writer(opened, prompt, *chosen(opened.values, {}))
    answer: dict[str, Any] = {
        "model": opened.run_id,
        "prompt": prompt,
        "next": writer.ranked(top),
    }
    if page:
        from sweeplab.report.models import write_attention

        maps = attention_maps(opened, prompt)
        write_attention(opened.run_id, prompt, maps, page)
        drawn = [
            {**vars(layer_map), "weights": layer_map.weights.tolist()} for layer_map in maps
        ]
        answer |= {"page": str(page), "attention": drawn}
    return answer | {"steps": steps}, _print_trace


def _print_trace(trace: dict[str, Any]) -> None:
    rows = [
        {
            "step": step["name"],
            "shape": " x ".join(map(str, step["shape"])),
            "values": " ".join(f"{each:9.4f}" for each in step["values"]),
        }
        for step in trace["steps"]
    ]
    print_rows(rows, text=("step", "values"))
    ranked = []
    for number, tokens in enumerate(trace.get("next", ()), start=1):
        for rank, row in enumerate(tokens, start=1):
            shown = {
                "rank": rank,
                "token": repr(row["token"]),
                "probability": f"{row['probability']:.4f}",
            }
            if len(trace["next"]) > 1:
                shown = {"[MASK]": number, **shown}
            ranked.append(shown)
    if ranked:
        print()
        print_rows(ranked, text=("token",))
    if "page" in trace:
        print(f"\n{trace['page']} written")


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
    lines = (
        f"wrote {folder}, a {name}\nnext: transformers.{name}.from_pretrained({str(folder)!r})"
    )
    answer = {"folder": str(folder), "class": name}
    if note:
        answer["note"], lines = note, f"{lines}\n{note}"
    return answer, lines


def import_hf(
    folder: Annotated[Path, argument("DIR", "Folder with config.json and safetensors.")],
    name: Annotated[
        str | None, option("NAME", "The run's name.  [default: the folder's]")
    ] = None,
    force: options.Force = False,
    lab: options.Lab = None,
) -> Answer:
    """Import a folder of Hugging Face transformers as a run.

    The run is stored in `imported` in the lab. Other commands take its name as RUN, studies as `init_from`.

    \b
    $ sweeplab import-hf gpt2 --name gpt2
    """
    from sweeplab.hf.folders import import_folder

    place, name = lab_folder(lab), name or folder.resolve().name
    check_imported_name(place, name)
    target = imported_folder(place, name)
    imported = import_folder(folder, target, name, force)

    size = several(imported.n_params, "parameter")
    lines = f"wrote {target}: {imported.family}, {size}, tokenizer {imported.tokenizer}"
    if imported.without:
        lines += f"\n{imported.without}: its texts are token ids, such as '12 7 304'"
    return {"run": name, "folder": str(target), **asdict(imported)}, lines
