"""Runs as they lie in a folder, of any family, as if they had been trained; stacks of one; a digest of batches."""

import hashlib

from sweeplab.data.batches import Batch
from sweeplab.data.objectives import n_special, settled_objective
from sweeplab.data.tokenizers import CharTokenizer
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer
from sweeplab.train.checkpoint import write_checkpoint
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

SIZES = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 24, "batch_size": 2}
LETTERS = CharTokenizer(" abcdefghijklmnopqrstuvwxyz")


def run_in(
    folder,
    tokenizer=LETTERS,
    kind="text",
    special=None,
    labels=(),
    **changed,
):
    """Write a run with weights as they start, four times as large so that they say something; return its folder."""
    values = Hyperparameters(**SIZES | changed)
    values = values.replace(objective=settled_objective(values, kind))
    values = values.replace(vocab_size=tokenizer.vocab_size + n_special(values))
    transformer = Transformer(ModelShape.of(values))
    row = 4 * transformer.layout.initial_row(seed=1)
    weights = {name: view[0] for name, view in transformer.layout.views(row[None]).items()}
    facts = {"values": values.as_dict(), "tokenizer": tokenizer.to_json()}
    facts |= {"labels": labels} if labels else {}
    write_checkpoint(
        folder, "model", weights, facts | ({"special": special} if special else {})
    )
    return folder


def begun(values, train, val=None, start=None):
    """Return a stack of one, `run`, before its first evaluation; without `val` it is evaluated on `train`."""
    stack = Stack(values, train, train if val is None else val)
    stack.admit(TrainingRun("run", values), start=start)
    return stack


def stack_of(runs, tokens, capacity=None):
    """Return a stack of runs, before their first evaluation, which is on the tokens that they are trained on."""
    stack = Stack(runs[0].values, tokens, tokens, capacity or len(runs))
    for run in runs:
        stack.admit(run)
    return stack


def digest(*batches):
    """Return a digest of all that batches have, the same on every machine."""
    found = hashlib.sha256()
    for batch in batches:
        for name, part in zip(Batch._fields, batch, strict=True):
            if part is not None:
                found.update(f"{name}{part.shape}".encode() + part.astype("<i8").tobytes())
    return found.hexdigest()[:16]
