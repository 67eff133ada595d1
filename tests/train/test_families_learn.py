"""Each family learns what the synthetic corpora ask, to nearly every letter of a whole target."""

import time

import pytest
from trained import begun

from sweeplab.data.dataset import prepare
from sweeplab.data.objectives import n_special, settled_objective
from sweeplab.hyperparameters import Hyperparameters, defaults
from sweeplab.model.shape import settled

VALUES = {
    "n_layer": 2, "n_embd": 64, "n_head": 4, "block_size": 32, "batch_size": 64, "dropout": 0.0, "max_iters": 3000,
    "learning_rate": 3e-3, "eval_interval": 250, "eval_iters": 10, "device": "cpu", "dtype": "float32",
    "compile": False, "patience": None, "log_interval": 100_000,
}  # fmt: skip
MATCHES, SECONDS = 0.99, 300.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "corpus"),
    [("decoder", "reverse"), ("encoder", "copy"), ("encoder_decoder", "reverse")],
)
def test_a_family_learns_a_rule(family, corpus, one_thread):
    data = prepare(corpus, "char")
    values = Hyperparameters.of(settled({**defaults(), **VALUES, "family": family}))
    values = values.replace(objective=settled_objective(values, data.kind))
    values = values.replace(vocab_size=data.tokenizer.vocab_size + n_special(values))
    stack = begun(values, data.train, data.val)
    started, matches = time.process_time(), 0.0
    while matches < MATCHES:
        (record,) = stack.advance()
        matches = record.measures["exact_match"]
        assert matches >= MATCHES or record.state == "running"
        assert time.process_time() - started < SECONDS
