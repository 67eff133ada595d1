"""A plugin's model in a stack: it learns as the transformer does, and continues from a snapshot with the same bits."""

import plugged
import pytest
import torch
from trained import begun

from sweeplab.errors import BadInput
from sweeplab.model.accounting import forward_flops, n_params, n_params_non_embedding
from sweeplab.model.shape import MODELS, ModelShape
from sweeplab.model.transformer import model_of
from sweeplab.train.checkpoint import read_snapshot, write_snapshot
from sweeplab.train.run import TrainingRun, shape_key
from sweeplab.train.stack import Stack


@pytest.fixture
def run_of(values_of):
    """Return a run of nanoGPT's shape, with changes."""
    usual = {
        "model": "nanogpt",
        "mlp_ratio": 4,
        "gate": "gelu",
        "max_iters": 20,
        "eval_interval": 10,
    }
    with plugged.imported():
        yield lambda **changed: TrainingRun("all/0/0", values_of(**usual | changed))


def trained(run, tokens, until=20, snapshot=None):
    stack = Stack(run.values, tokens, tokens[:5000])
    stack.admit(run, snapshot)
    while stack.snapshot(run.key).numbers["evaluated"] < until and stack.advance():
        pass
    return stack


def test_it_is_counted_as_the_transformer_of_its_shape(run_of):
    ours = ModelShape.of(run_of(head_dim="auto").values)
    theirs = ModelShape.of(run_of(head_dim="auto").values.replace(model="transformer"))
    assert n_params(ours) == n_params(theirs)
    assert n_params_non_embedding(ours) == n_params_non_embedding(theirs)
    assert forward_flops(ours, 16) == forward_flops(theirs, 16)
    wide = ModelShape.of(run_of(mlp_ratio=8).values)
    assert n_params(wide) > n_params(ours), "its own rows are part of its shape"


@pytest.mark.parametrize(
    "changed", [{}, {"grad_accum": 2}, {"optimizer": "muon"}, {"dtype": "bfloat16"}]
)
def test_it_continues_with_the_same_bits(run_of, tokens, tmp_path, changed):
    run = run_of(dropout=0.1, **changed)
    whole = trained(run, tokens).weights(run.key)
    torch.rand(7)  # what the process has drawn is nothing to a run
    write_snapshot(tmp_path, trained(run, tokens, until=10).snapshot(run.key))
    again = trained(run, tokens, snapshot=read_snapshot(tmp_path)).weights(run.key)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    other = trained(TrainingRun("all/0/1", run.values.replace(seed=1)), tokens).weights(
        "all/0/1"
    )
    assert not torch.equal(whole["wpe.weight"], other["wpe.weight"])


def test_dropout_draws_in_training_alone(run_of, tokens):
    values = run_of(dropout=0.5).values
    stack = begun(values, tokens, tokens[:5000])
    state = torch.get_rng_state()
    first = stack.advance()[0]
    assert first.val_loss == pytest.approx(4.17, abs=0.1) and torch.equal(
        state, torch.get_rng_state()
    )
    (second,) = stack.advance()
    assert second.val_loss < first.val_loss
    weights = {name: each[None] for name, each in stack.weights("run").items()}
    inputs = stack._loss_inputs([0], 1)
    first, again = (stack._evaluation.loss(weights, inputs).tolist() for _ in range(2))
    assert first == again == [second.val_loss]


def test_its_runs_share_a_stack_with_other_seeds_alone(run_of):
    run = run_of()
    assert shape_key(run.values) == shape_key(run.values.replace(seed=3))
    assert shape_key(run.values) != shape_key(run.values.replace(gate="silu"))
    assert shape_key(run.values) != shape_key(run.values.replace(dropout=0.3))


BROKEN = {
    "forward of model nanogpt returned a tuple; allowed: a tensor": lambda gpt: (
        lambda idx, forward=gpt.forward: (forward(idx), None)
    ),
    "forward of model nanogpt returned a tensor [1, 1, 65]; allowed: logits [1, 16, 65]": lambda gpt: (
        lambda idx, forward=gpt.forward: forward(idx)[:, -1:]
    ),
    "does not use its parameters wpe.weight": lambda gpt: (
        lambda idx: gpt.head(gpt.ln_f(gpt.h[1](gpt.h[0](gpt.wte(idx)))))
    ),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_module_that_cannot_be_trained_is_one_line(run_of, said):
    values = run_of().values
    known = MODELS["nanogpt"]

    def broken(values):
        gpt = known.make(values)
        gpt.forward = BROKEN[said](gpt)
        return gpt

    MODELS["nanogpt"] = type(known)(broken, known.rows, known.file)
    with pytest.raises(BadInput) as error:
        forward_flops(ModelShape.of(values.replace(n_embd=40)), 16)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_factory_that_raises_is_one_line_with_its_place(run_of):
    with pytest.raises(BadInput, match=r"^model nanogpt: .*nanogpt\.py:\d+: \w+Error: "):
        n_params(ModelShape.of(run_of(mlp_ratio="two").values))


def test_a_buffer_that_changes_is_refused(run_of):
    transformer = model_of(run_of().values)
    gpt = transformer._module
    gpt.register_buffer("seen", torch.zeros(()))
    gpt.register_forward_hook(lambda module, *_: module.seen.add_(1))
    from sweeplab.data.batches import Batch
    from sweeplab.model.blocks import Dropout, mask_inputs

    masks = mask_inputs([1], [0], [{}], transformer.sites.values())
    tokens = torch.zeros(1, 2, 16, dtype=torch.long)
    weights = transformer.layout.views(transformer.layout.initial_row(0)[None])
    with pytest.raises(ValueError, match="changes its buffer seen, which no snapshot keeps"):
        transformer.losses(
            weights, Batch(tokens, tokens), Dropout(masks, transformer.sites, torch.zeros(0))
        )
