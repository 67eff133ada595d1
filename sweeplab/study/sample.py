"""What a study's best run writes: kept beside the study, in tracking and on its report.

The prompt is the beginning of the validation split, laid out as the objective does it: nobody chose it.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from sweeplab.data.objectives import make_objective
from sweeplab.data.prompts import HOLE
from sweeplab.errors import BadInput
from sweeplab.files import write_whole
from sweeplab.study.best import find_best
from sweeplab.study.folder import StudyFolder
from sweeplab.tracking.folder import RunFolder

if TYPE_CHECKING:
    from sweeplab.data.dataset import Dataset

# A study is not to wait for its sample.
MOST_TOKENS = 200
SEED = 0


def keep_sample(folder: StudyFolder, dataset: Dataset) -> None:
    """Let the best run write a sample, where it has kept a checkpoint and has not written one yet.

    Each worker does so before it leaves, after its last run has ended: the last one knows of all runs. What goes wrong
    is said in the worker's log, and costs nothing but the sample.
    """
    try:
        with FileLock(folder.path / "sample.lock"):
            _keep(folder, dataset)
    except BadInput:
        return  # no run has come to its end, or none that takes a prompt
    except Exception:
        traceback.print_exc(file=sys.stderr)


def read_sample(folder: StudyFolder) -> dict[str, Any] | None:
    """Return the sample: the run, the prompt with its holes, the text, and how it was drawn; None without one."""
    file = folder.sample / "sample.json"
    return folder.read(file) if file.exists() else None


def _keep(folder: StudyFolder, dataset: Dataset) -> None:
    best = Path(find_best(folder).runs[0])
    name = f"{folder.name}/{best.parent.name}/{best.name}"
    known, checkpoint = read_sample(folder), RunFolder(best, {}).checkpoint()
    if checkpoint is None or (known and known["run"] == name):
        return
    said = _written(checkpoint, name, dataset)
    folder.sample.mkdir(exist_ok=True)
    write_whole(folder.sample / "sample.txt", _as_text(said).encode("utf-8", "replace"))
    write_whole(folder.sample / "sample.json", json.dumps(said).encode())


def _written(checkpoint: Path, name: str, dataset: Dataset) -> dict[str, Any]:
    from sweeplab.study.generating import Writer, chosen
    from sweeplab.tracking.loading import load_checkpoint

    run = load_checkpoint(checkpoint, name)
    encoded = make_objective(dataset.val, run.values).example()
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
