"""The shapes that signatures say are those of the tensors: checked in a process of its own, for checking takes time."""

import sys
from pathlib import Path

import pytest
from terminal import said

# Annotations are resolved when a function is defined, so what is imported for them alone is imported too. ModelShape
# is not checked: its fields are `auto` until it has replaced them.
CHECKED = """
import typing
import beartype, jaxtyping, numpy, safetensors.torch, torch
import sweeplab.data.objectives
torch.set_num_threads(1)
typing.TYPE_CHECKING = True
import sweeplab.model.shape
hook = jaxtyping.install_import_hook(("sweeplab.model", "sweeplab.train"), "beartype.beartype")
import sweeplab.model.tracing, sweeplab.model.generation, sweeplab.train.coordinates, sweeplab.train.checkpoint
typing.TYPE_CHECKING = False
"""

MODELS = """
from itertools import islice
from model.cases import batch_of, legal_shapes, losses_and_gradients, random_weights, rows_of, run_of
from sweeplab.data.batches import changed
from sweeplab.data.objectives.base import Prompt
from sweeplab.model.generation import Contrast, Reader, TokenSampler, Sampling, beam_search, fill, sample
from sweeplab.model.shape import FAMILIES
from sweeplab.model.tracing import trace
from sweeplab.model.transformer import Transformer

for family in FAMILIES:
    for shape in islice(legal_shapes(family=family), 0, None, 75):
        model = Transformer(shape)
        router = (torch.ones(3), torch.ones(3)) if shape.n_expert > 1 else None
        losses_and_gradients(model, rows_of(model, 3), batch_of(shape, 3), smoothing=torch.ones(3) / 9, router=router)
        arrays = changed(batch_of(shape, 1), lambda part: part[0].numpy())
        trace(shape, random_weights(shape, 0), arrays)
        weights, draw = model.layout.views(rows_of(model, 1)), TokenSampler(Sampling(0.9, 4, 0.9))
        source = [1, 2, 3] if family == "encoder_decoder" else None
        prompt = Prompt([1, 2, 3], [1] if family == "encoder" else (), source, end=5)
        if family == "encoder":
            fill(model, weights, prompt, 8, draw)
        else:
            both = Contrast(Reader(model, weights, prompt, 8), Reader(model, weights, prompt, 8))
            list(sample(both, draw, prompt, 12))
            beam_search(Reader(model, weights, prompt, 8), prompt, 3, 6)
"""

TRAINING = """
import numpy as np
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.train.coordinates import coordinates
from sweeplab.train.run import TrainingRun
from sweeplab.train.stack import Stack

tokens = np.arange(900, dtype=np.uint16) % 23
small = Hyperparameters(
    n_layer=1, n_embd=16, n_head=2, block_size=12, batch_size=4, max_iters=2, eval_iters=1, eval_interval=2,
    vocab_size=40, device="cpu", dtype="float32", compile=False, grad_accum=2, log_interval=1, positions="rotary",
)
models = ((1, "next_token", "decoder"), (2, "span", "encoder_decoder"))
for number, optimizer in enumerate(TABLE["optimizer"].choices):
    n_expert, objective, family = models[number % 2]
    values = small.replace(optimizer=optimizer, n_expert=n_expert, objective=objective, family=family)
    stack = Stack(values, tokens, tokens, 2)
    for seed in range(2):
        stack.admit(TrainingRun(str(seed), values.replace(seed=seed)))
    stack.advance()
    stack.admit(TrainingRun("2", values), stack.snapshot("1")) if stack.release("1") else stack.advance()
list(coordinates(small.replace(parametrization="mup"), tokens, 1))
"""

WRONG = """
from sweeplab.model.attention import by_run
from sweeplab.model.transformer import cross_entropy
from sweeplab.train.optimizers import orthogonalize
from sweeplab.train.step import clip_

for wrong in (
    lambda: cross_entropy(torch.zeros(2, 12, 5), torch.zeros(3, 4, 3, dtype=torch.long)),
    lambda: by_run(torch.Tensor.sum, torch.zeros(2, 64), 2),
    lambda: orthogonalize(torch.ones(1, 2, 2, 2)),
    lambda: clip_(torch.ones(2, 3), torch.ones(2), torch.ones(1)),
):
    try:
        wrong()
    except Exception as error:
        assert "TypeCheck" in type(error).__name__, error
    else:
        raise SystemExit("tensors of wrong shapes were taken")
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [MODELS, TRAINING + WRONG], ids=["models", "training"])
def test_tensors_have_the_shapes_that_signatures_say(code):
    tests = str(Path(__file__).parents[1])
    said([sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{CHECKED}{code}"])
