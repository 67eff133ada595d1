"""What a study's best run writes, of each thing that its runs find: kept beside it, in tracking and on its report.

The prompt is the beginning of the validation split, laid out as the objective does it: nobody chose it.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from sweeplab.data.objectives import make_objective
from sweeplab.data.prompts import HOLE
from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.lab.listing import best_by_task, read_trials
from sweeplab.records.folders import StudyFolder

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset

# A study is not to wait for its sample.
MOST_TOKENS = 200
SEED = 0


def keep_sample(folder: StudyFolder, dataset: Dataset) -> None:
    """Let the best run of each task write a sample, where it has kept a checkpoint and has not written one yet.

    Each worker does so before it leaves, after its last run has ended: the last one knows of all runs. What goes wrong
    is said in the worker's log, and costs nothing but the sample.
    """
    try:
        with FileLock(folder.path / "sample.lock"):
            _keep(folder, dataset)
    except Exception:
        traceback.print_exc(file=sys.stderr)


def read_samples(folder: StudyFolder) -> list[dict[str, Any]]:
    """Return the samples, one a task: the run, the prompt with its holes, the text, and how it was drawn."""
    file = folder.sample / "samples.json"
    found: list[dict[str, Any]] = folder.read(file)["samples"] if file.exists() else []
    return found


def _keep(folder: StudyFolder, dataset: Dataset) -> None:
    written = {each["run"]: each for each in read_samples(folder)}
    samples = []
    for best in (own[0].runs[0] for own in best_by_task(folder, read_trials(folder))):
        name = f"{folder.name}/{best.cell}/{best.path.name}"
        if name in written:
            samples.append(written[name])
        elif checkpoint := best.checkpoint():
            with suppress(BadInput):  # it takes no prompt
                samples.append(_written(checkpoint, name, dataset))
    if not samples or samples == list(written.values()):
        return
    folder.sample.mkdir(exist_ok=True)
    text = "\n\n".join(map(_as_text, samples))
    write_whole(folder.sample / "samples.txt", text.encode("utf-8", "replace"))
    write_whole(folder.sample / "samples.json", json.dumps({"samples": samples}).encode())


def _written(checkpoint: Path, name: str, dataset: Dataset) -> dict[str, Any]:
    from sweeplab.runs.generating import Writer, chosen
    from sweeplab.tracking.loading import load_checkpoint

    run = load_checkpoint(checkpoint, name)
    encoded = make_objective(dataset.val, run.values, run.own_special).example()
    text = HOLE.join(map(run.tokenizer.decode, encoded))
    sampling, most = chosen(run.values, {})
    writer = Writer(run, text, sampling, min(most, MOST_TOKENS), SEED, encoded=encoded)
    return {
        "run": name,
        "val_loss": run.facts["val_loss"],
        "prompt": text,
        "text": "".join(writer.words(writer.tokens())),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": SEED,
    }


def _as_text(said: dict[str, Any]) -> str:
    how = ", ".join(f"{name} {said[name]}" for name in ("val_loss", "temperature", "top_k", "top_p", "seed"))
    prompt = f"Prompt, from the beginning of the validation split:\n\n{said['prompt']}"
    return f"{said['run']}: {how}\n\n{prompt}\n\nText:\n\n{said['text']}\n"
