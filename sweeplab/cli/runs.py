"""Commands on a trained run: generate, classify, evaluate, `model attention`, `model next`, folders of transformers."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeplab.cli.options import AsJson, Force, Lab, Prompt, Run, argument, flag, option, whole_numbers
from sweeplab.cli.printing import Answer, print_answer, print_json, print_rows
from sweeplab.errors import BadInput, Problem
from sweeplab.records.folders import lab_folder
from sweeplab.records.runs import MEASURED_ON
from sweeplab.runs.opening import check_imported_name, imported_folder, open_run

LONGEST_SHOWN = 60  # characters of a text beside its label
STRETCHES = 4  # rows per block_size of positions in the table of losses by position


def generate(
    run: Run,
    prompt: Prompt,
    temperature: Annotated[
        float | None, option("T", "Flatten (above 1) or sharpen (below 1).  [default: the run's]")
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
        str | None,
        option("RUN", "Decode contrastively against this smaller run with the same tokenizer."),
    ] = None,
    lab: Lab = None,
    as_json: AsJson = False,
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
    drawing = [
        name for name, each in {**drawn, "seed": seed, "greedy": greedy or None}.items() if each is not None
    ]
    if beams is not None and drawing:
        option = drawing[0].replace("_", "-")
        raise BadInput(Problem(f"--{option} beside --beams, which does not sample", "one of them"))
    given = {**drawn, "max_new_tokens": max_new_tokens}
    chosen(Hyperparameters(), given)  # refuses values out of range before anything is loaded
    place = lab_folder(lab)
    opened = open_run(run, place)
    amateur = open_run(contrast, place) if contrast is not None else None
    writer = Writer(opened, prompt, *chosen(opened.values, given, greedy), seed=seed or 0, amateur=amateur)
    said: dict[str, Any] = {"run": writer.run.run_id, "prompt": writer.text}
    if beams is not None:
        found = writer.beams(beams)
        print_answer((said | {"beams": found}, found[0]["text"]), as_json)
    elif as_json:
        tokens = list(writer.tokens())
        print_json(said | {"seed": writer.seed, "tokens": tokens, "text": "".join(writer.words(tokens))})
    else:
        for piece in writer.words(writer.tokens()):
            print(piece, end="", flush=True)
        print(flush=True)


def classify(
    run: Run,
    texts: Annotated[list[str] | None, argument("[TEXT]...", "Texts to label.")] = None,
    file: Annotated[
        Path | None, option("FILE", "A file of texts, one per line, or - for standard input.")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Label texts, or their words, with a trained run.

    It prints a label with its probability for each text, or for each word of a text. The run must be trained on
    the corpus `labels` or, for words, `tags`.

    \b
    $ sweeplab classify reviews "A film to remember." "Two hours lost."
    $ sweeplab classify reviews --file texts.txt --json
    """
    import sys

    from sweeplab.data.corpora.base import document

    read = "" if file is None else sys.stdin.read() if str(file) == "-" else document(file)
    given = [*(texts or ()), *(line for line in read.splitlines() if line.strip())]
    if not given:
        raise BadInput(Problem("there is no text", "RUN TEXT…, or --file FILE"))
    opened = open_run(run, lab_folder(lab))
    rows = opened.classify(given)

    def told(_: Any) -> None:
        if "tags" in rows[0]:
            tags = [each for row in rows for each in row["tags"]]
            said = [each["probability"] and f"{each['probability']:.4f}" for each in tags]
            shown = [each | {"probability": p} for each, p in zip(tags, said, strict=True)]
            print_rows(shown, text=("word", "label"))
            return
        shown = [
            {
                "label": each["label"],
                "probability": f"{each['probabilities'][each['label']]:.4f}",
                "text": each["text"]
                if len(each["text"]) <= LONGEST_SHOWN
                else f"{each['text'][:LONGEST_SHOWN]}…",
            }
            for each in rows
        ]
        print_rows(shown, text=("label", "text"))

    return {"run": opened.run_id, "texts": rows}, told


def score(
    run: Run,
    first: Annotated[str | None, argument("[FIRST]", "The first text.")] = None,
    second: Annotated[str | None, argument("[SECOND]", "The second text.")] = None,
    file: Annotated[Path | None, option("FILE", "A file with two texts per line, a tab between.")] = None,
    lab: Lab = None,
) -> Answer:
    """Score pairs of texts with a trained run.

    A score may be their similarity. The run must be trained on the corpus `scores`: pairs of texts with a score.

    \b
    $ sweeplab score alike "A man plays." "Someone is playing."
    $ sweeplab score alike --file pairs.tsv --json
    """
    from sweeplab.data.corpora.base import document

    given = [] if first is None or second is None else [(first, second)]
    for number, line in enumerate("" if file is None else document(file).splitlines(), start=1):
        one, *others = line.split("\t")
        if len(others) != 1 or not one.strip() or not others[0].strip():
            allowed = "a tab between two texts"
            raise BadInput(Problem("there are no two texts", allowed, file=file, line=number))
        given.append((one, others[0]))
    if not given:
        raise BadInput(Problem("there are no two texts", "RUN FIRST SECOND, or --file FILE"))
    opened = open_run(run, lab_folder(lab))
    rows = opened.score(given)

    def told(_: Any) -> None:
        cut = {
            name: [f"{each[name][:LONGEST_SHOWN]}" for each in rows] for name in ("sentence1", "sentence2")
        }
        shown = [
            {"score": f"{each['score']:.4f}", "sentence1": one, "sentence2": other}
            for each, one, other in zip(rows, *cut.values(), strict=True)
        ]
        print_rows(shown, text=("sentence1", "sentence2"))

    return {"run": opened.run_id, "pairs": rows}, told


def evaluate(
    run: Run,
    lengths: Annotated[str, option("N,…", "Lengths of the sequences, as multiples of block_size.")] = "1,2,4",
    study: Annotated[
        str | None, option("NAME", "Study to take the validation split from.  [default: the run's]")
    ] = None,
    report: Annotated[Path | None, option("PAGE.html", "Also write a page with loss by position.")] = None,
    lab: Lab = None,
) -> Answer:
    """Evaluate a trained run, also on longer sequences.

    Losses are given by position too. Sequences longer than block_size need positions without a maximum, such as
    rotary, alibi, relative, sinusoidal or none. A run that kept its best checkpoint is evaluated with it.

    \b
    $ sweeplab evaluate small --lengths 1,2,4 --report positions.html
    """
    from sweeplab.runs.inspecting import evaluated

    times = whole_numbers("--lengths", lengths, "whole numbers from 1 to 64, such as 1,2,4", largest=64)
    found = evaluated(run, lab_folder(lab), times, study)
    if report:
        from sweeplab.report.models import write_evaluation

        write_evaluation(found, report)
        found |= {"report": str(report)}
    return found, _print_evaluation


def _print_evaluation(found: dict[str, Any]) -> None:
    print(f"validation split of study {found['study']}; val_loss {MEASURED_ON['val_loss']}")
    print_rows([{"measure": name, "value": value} for name, value in found["measures"].items()], ["measure"])
    if lengths := found["length_extrapolation"]:
        print()
        print_rows(lengths, text=(), keys=[name for name in lengths[0] if name != "by_position"])
        print("\nmean loss by position")
        losses = {f"{row['times']}x": row["by_position"] for row in lengths}
        print_rows(_by_stretch(losses, max(1, found["block_size"] // STRETCHES)), ["positions"])
    for each in found["left_out"]:
        print(f"\nno loss at {each['times']} times block_size: {each['why']}")
    if "report" in found:
        print(f"\n{found['report']} written")


def _by_stretch(losses: dict[str, list[float]], width: int) -> list[dict[str, Any]]:
    """Return one row per range of `width` positions, with the mean of each list's finite losses there."""

    def mean(losses: list[float]) -> float | None:
        known = [loss for loss in losses if math.isfinite(loss)]
        return sum(known) / len(known) if known else None

    known = (at for each in losses.values() for at, loss in enumerate(each) if math.isfinite(loss))
    end = 1 + max(known, default=0)
    return [
        {"positions": f"{start}–{min(start + width, end) - 1}"}
        | {name: mean(each[start : start + width]) for name, each in losses.items()}
        for start in range(0, end, width)
    ]


def attention(
    run: Annotated[str | None, argument("[RUN]", "A run, as `sweeplab generate` takes it.")] = None,
    prompt: Annotated[str | None, option("TEXT", "Text that the run reads.")] = None,
    layer: Annotated[int | None, option("N", "Only this layer, from 0.")] = None,
    head: Annotated[int | None, option("N", "Only this head, from 0.")] = None,
    output: Annotated[Path | None, option("FILE", "The page.  [default: LAB/reports/attention.html]")] = None,
    matrices: Annotated[
        str | None, option("FILE", "Your own queries, keys and values: YAML, JSON or CSV file, or YAML text.")
    ] = None,
    causal: Annotated[bool, flag("For --matrices: queries see no later keys.", "--causal")] = False,
    scale: Annotated[
        float | None, option("X", "For --matrices: factor of the products.  [default: 1/sqrt(width)]")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Draw a run's attention, or compute that of small matrices.

    The page has one panel per layer with one matrix per head, and the numbers below. An encoder-decoder
    first generates a target for the prompt; its cross-attention is drawn too. With --matrices no run is needed:
    the scores, the softmax weights and the output are printed.

    \b
    $ sweeplab model attention small --prompt "The print function" --layer 0
    $ sweeplab model attention --matrices "{q: [[1]], k: [[2]], v: [[3]]}"
    $ sweeplab model attention --matrices inputs.csv --causal
    """
    if matrices is not None:
        from sweeplab.runs.matrices import attention_of, read_matrices

        if run is not None:
            raise BadInput(Problem("both RUN and --matrices", "RUN --prompt TEXT, or --matrices FILE"))
        return attention_of(read_matrices(matrices), causal, scale), _print_steps
    if run is None or prompt is None:
        raise BadInput(Problem("no text and no matrices", "RUN --prompt TEXT, or --matrices FILE"))
    from sweeplab.report.models import write_attention
    from sweeplab.runs.inspecting import attention_maps

    opened = open_run(run, lab_folder(lab))
    maps = attention_maps(opened, prompt, layer, head)
    file = output or lab_folder(lab) / "reports" / "attention.html"
    write_attention(opened.run_id, prompt, maps, file)
    plain = [{**vars(each), "heads": list(each.heads), "weights": each.weights.tolist()} for each in maps]
    return {"output": str(file), "run": opened.run_id, "maps": plain}, f"{file} written"


def _print_steps(steps: dict[str, list[list[float]]]) -> None:
    said = {
        "products": "products of queries and keys",
        "scores": "scores: products times the scale, masked entries are -inf",
        "weights": "weights: the softmax of each row",
        "output": "output: weights times values",
    }
    of_keys = ("products", "scores", "weights")
    for name, rows in steps.items():
        print(said.get(name, name))
        columns = [f"k{at}" if name in of_keys else str(at) for at in range(1, 1 + len(rows[0]))]
        letter = "k" if name in ("keys", "values") else "q"
        table = [
            {"": f"{letter}{at}"} | dict(zip(columns, (f"{each:.4f}" for each in row), strict=True))
            for at, row in enumerate(rows, start=1)
        ]
        print_rows(table, text=("",))
        print()


def next_tokens(
    run: Run,
    prompt: Prompt,
    most: Annotated[int, option("N", "Number of tokens to show.", min=1)] = 10,
    lab: Lab = None,
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
    found: dict[str, Any] = {"run": opened.run_id, "prompt": prompt}
    found |= {"places": ranked} if several else {"tokens": ranked[0]}
    return found, lambda _: print_rows(rows, text=("token",))


def export_hf(
    run: Run,
    folder: Annotated[Path, argument("DIR", "Folder to write.")],
    force: Force = False,
    lab: Lab = None,
) -> Answer:
    """Export a run as a folder for Hugging Face transformers.

    It is written for the class that can express it: GPT-2, Llama, BERT or T5.

    \b
    $ sweeplab export-hf small small-hf
    """
    from sweeplab.hf.folders import export_run, without_class

    opened = open_run(run, lab_folder(lab))
    name, note = export_run(opened, folder, force).class_name, without_class(opened)
    told = f"wrote {folder}, a {name}\nnext: transformers.{name}.from_pretrained({str(folder)!r})"
    found = {"folder": str(folder), "class": name}
    return (found | {"note": note}, f"{told}\n{note}") if note else (found, told)


def import_hf(
    folder: Annotated[Path, argument("DIR", "Folder with config.json and safetensors.")],
    name: Annotated[str | None, option("NAME", "The run's name.  [default: the folder's]")] = None,
    force: Force = False,
    lab: Lab = None,
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
    found = import_folder(folder, target, name, force)

    def told(_: Any) -> None:
        size = f"{found.n_params:,} parameters"
        typer.echo(f"wrote {target}: {found.family}, {size}, tokenizer {found.tokenizer}")
        if found.without:
            typer.echo(f"{found.without}: its texts are token ids, such as '12 7 304'", err=True)

    return {"run": name, "folder": str(target), **asdict(found)}, told
