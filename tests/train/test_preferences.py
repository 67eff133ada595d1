"""Direct preference optimization: its loss and measures against the formula, and the same bits in any stack."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeplab.data.batches import NO_TARGET, Batch, Pairs, limited
from sweeplab.data.dataset import Dataset, prepare
from sweeplab.data.objectives import make_objective
from sweeplab.data.objectives.pairs import source_lengths
from sweeplab.data.prompts import BOS, EOS
from sweeplab.errors import BadInput
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.train.run import Run
from sweeplab.train.stack import Stack

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("decoder", "encoder_decoder")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return prompts of which that answer is chosen which has more of the letter a; answers are of unlike lengths."""
    drawn, rows = np.random.default_rng(0), []
    for at in range(300):
        many, few = ("".join(drawn.permutation(list("a" * n + "b" * (5 - n + at % 2)))) for n in (4, 1))
        rows.append(json.dumps({"prompt": f"{at}?", "chosen": many, "rejected": few, "note": "more"}))
    file = tmp_path_factory.mktemp("preferences") / "answers.jsonl"
    file.write_text("\n".join(rows))
    return prepare("preferences", "char", str(file))


def values_of(data: Dataset, family: str = "decoder", **changed) -> Hyperparameters:
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "block_size": 12, "batch_size": 8, "dropout": 0.0}
    steps = {
        "max_iters": 60,
        "eval_interval": 20,
        "warmup_iters": 5,
        "learning_rate": 3e-3,
        "log_interval": 20,
    }
    own = {"device": "cpu", "dtype": "float32", "compile": False, "eval_full": True, "beta": 0.2}
    given = {"objective": "preference", "family": family, **sizes, **steps, **own, **changed}
    return Hyperparameters.of({**given, "vocab_size": data.tokenizer.vocab_size + 4})


def start_of(data: Dataset, values: Hyperparameters) -> dict[str, torch.Tensor]:
    """Return weights that say something: four times as large as random ones."""
    stack = Stack(values, data.train, data.val)
    stack.admit(Run("start", values.replace(seed=9)))
    return {name: 4 * weight for name, weight in stack.weights("start").items()}


def plainly(stack: Stack, weights, start, batch: Batch, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return loss and margins of a batch of one run by equation 7 of Rafailov et al. 2023, answer by answer."""

    def answers(own) -> list[torch.Tensor]:
        placed = Batch(*(None if part is None else torch.from_numpy(part)[None] for part in batch[:5]))
        shares = stack.transformer.logits(own, placed)[0].double().softmax(dim=-1)
        shares = shares.view(*batch.targets.shape, -1)
        found = []
        for row, targets in enumerate(batch.targets):
            places = np.flatnonzero(targets != NO_TARGET)
            found.append(sum(shares[row, place, targets[place]].log() for place in places))
        return found

    policy, reference = (
        answers({name: each[None] for name, each in own.items()}) for own in (weights, start)
    )
    margins = []
    for chosen, rejected in zip(range(0, len(policy), 2), range(1, len(policy), 2), strict=True):
        of_chosen = beta * (policy[chosen] - reference[chosen])
        margins.append(of_chosen - beta * (policy[rejected] - reference[rejected]))
    found = torch.stack(margins)
    return -torch.log(1 / (1 + torch.exp(-found))).mean(), found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_and_its_gradient_are_those_of_the_formula(data: Dataset, family: str) -> None:
    values = values_of(data, family, grad_clip=None, optimizer="sgd", momentum=0.0, weight_decay=0.0)
    values = values.replace(lr_decay=False, warmup_iters=0, learning_rate=0.5, beta=0.3, log_interval=1)
    start, stack = start_of(data, values), Stack(values, data.train, data.val)
    stack.admit(Run("run", values), start=start)
    stack.advance()
    objective = make_objective(data.train, values)
    for step in range(3):
        before = {name: each.clone().requires_grad_() for name, each in stack.weights("run").items()}
        loss, _ = plainly(stack, before, start, objective.training(0, step), 0.3)
        gradients = torch.autograd.grad(loss, list(before.values()), allow_unused=True)
        stack._step()
        assert stack._members[0].points[-1]["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
        after = stack.weights("run")
        for (name, weight), gradient in zip(before.items(), gradients, strict=True):
            moved = weight.detach() - (0 if gradient is None else 0.5 * gradient)
            torch.testing.assert_close(after[name], moved.to(after[name]), atol=3e-5, rtol=1e-4)
    assert loss.item() != pytest.approx(math.log(2), abs=1e-3), (
        "the last loss is another one than the start's"
    )


def test_the_measures_are_those_of_the_formula(data: Dataset) -> None:
    values = values_of(data)
    start, stack = start_of(data, values), Stack(values, data.train, data.val)
    stack.admit(Run("run", values), start=start)
    (first,) = stack.advance()
    assert first.val_loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.measures["reward_margin"] == pytest.approx(0.0, abs=1e-6)
    (record,) = stack.advance()
    batches = list(make_objective(data.val, values).evaluation())
    weights = stack.weights("run")
    margins = torch.cat([plainly(stack, weights, start, batch, values.beta)[1] for batch in batches])
    assert len(margins) == data.val.n_pairs / 2 == 30
    assert record.val_loss == pytest.approx(-torch.nn.functional.logsigmoid(margins).mean().item(), abs=1e-6)
    assert record.measures["reward_accuracy"] == (margins > 0).double().mean()
    assert record.measures["reward_margin"] == pytest.approx(margins.mean().item(), abs=1e-6)
    assert stack.whole_losses(["run"], best=False) == pytest.approx([record.val_loss], abs=1e-7)


def test_label_smoothing_takes_a_share_of_preferences_for_wrong(data: Dataset) -> None:
    values = values_of(data, label_smoothing=0.1, learning_rate=1e-2, lr_decay=False, log_interval=1)
    start, stack = start_of(data, values), Stack(values, data.train, data.val)
    stack.admit(Run("run", values), start=start)
    for _ in range(4):
        stack._step()
    _, margins = plainly(stack, stack.weights("run"), start, stack._objective.training(0, 4), values.beta)
    stack._step()
    sure = torch.nn.functional.logsigmoid
    wanted = -(0.9 * sure(margins) + 0.1 * sure(-margins)).mean().item()
    assert stack._members[0].points[-1]["train_loss"] == pytest.approx(wanted, abs=1e-5)


def test_a_planted_preference_is_learned_with_the_same_bits_in_any_stack(data: Dataset) -> None:
    values = values_of(data, max_iters=80)
    start = start_of(data, values)

    def losses(keys: str, capacity: int, cut: bool = False) -> list[tuple[float, dict[str, float]]]:
        stack = Stack(values, data.train, data.val, capacity)
        for key in keys:
            own = values if key == "0" else values.replace(seed=int(key), beta=0.9, learning_rate=1e3)
            stack.admit(Run(key, own), start=start)
        found = []
        while "0" in stack.keys:
            for record in stack.advance():
                if record.key == "0":
                    found.append((record.val_loss, record.measures))
                if record.state != "running":
                    stack.release(record.key)
            if cut and len(found) == 3 and "0" in stack.keys:
                snapshot = stack.snapshot("0")
                stack = Stack(values, data.train, data.val, 2)
                stack.admit(Run("0", values), snapshot, start)
        return found

    alone = losses("0", 1)
    assert alone == losses("120", 3) == losses("10", 2, cut=True)
    last = alone[-1]
    assert last[0] < 0.4 and last[1]["reward_accuracy"] > 0.9 and last[1]["reward_margin"] > 0.5


def test_parts_of_a_batch_are_the_batch_at_once(data: Dataset) -> None:
    losses = []
    for n_parts in (1, 4):
        values = values_of(data, grad_accum=n_parts, max_iters=20)
        stack = Stack(values, data.train, data.val)
        stack.admit(Run("run", values), start=start_of(data, values))
        losses.append([stack.advance()[0].val_loss for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and losses[0][1] < losses[0][0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_as_it_is_compiled_has_its_beta_and_its_reference(data: Dataset, family: str) -> None:
    values = values_of(data, family)
    stack = Stack(values, data.train, data.val, 2)
    for seed, start in enumerate((start_of(data, values), None)):
        stack.admit(Run(str(seed), values.replace(seed=seed, beta=0.1 + seed)), start=start)
    stack.advance()
    losses = stack.traceable()(*(each.clone() for each in stack.staged()))[0]
    stack._step()
    torch.testing.assert_close(losses, stack._rows["loss"][:2, 0], atol=1e-6, rtol=0)
    assert losses[0].item() == pytest.approx(math.log(2), abs=1e-5)


def test_what_the_start_says_is_computed_once_for_all_runs_of_a_stack(data: Dataset, monkeypatch) -> None:
    values, computed = values_of(data), []
    start = start_of(data, values)
    from sweeplab.train import stack as module

    own = module.references
    monkeypatch.setattr(module, "references", lambda *given: computed.append(1) or own(*given))
    stack = Stack(values, data.train, data.val, 3)
    for seed in range(3):
        stack.admit(Run(str(seed), values.replace(seed=seed)), start=start)
    assert len(computed) == 2, "of the training and of the validation split"


@pytest.mark.parametrize("family", FAMILIES)
def test_two_answers_follow_the_same_prompt(data: Dataset, family: str) -> None:
    assert data.kind == "preferences" and isinstance(data.train, Pairs) and data.train.per_source == 2
    # Of the longest answer, 6 tokens, and of what stands around it a decoder leaves one for the prompt.
    values = values_of(data, family, block_size=9)
    objective, decode = make_objective(data.train, values), data.tokenizer.decode
    for batch in (objective.training(0, 0), next(objective.evaluation())):
        assert len(batch.targets) % 2 == 0 and (batch.reference[1::2] == batch.reference[::2] + 1).all()
        texts = []
        for row, targets in enumerate(batch.targets):
            found = targets[targets != NO_TARGET]
            assert found[-1] == objective.special[EOS]
            read = (
                batch.inputs[row] if batch.source is None else batch.source[row, : batch.source_lengths[row]]
            )
            if batch.source is None:
                read = read[: read.tolist().index(objective.special[BOS])]
            texts.append((decode(read.tolist()), decode(found[:-1].tolist())))
        for (prompt, chosen), (same, rejected) in zip(texts[::2], texts[1::2], strict=True):
            assert prompt == same and (chosen.count("a"), rejected.count("a")) == (4, 1)
    lengths = source_lengths(data.train, values)
    assert (lengths[::2] == lengths[1::2]).all() and data.bits_per_byte(0.5, values) is None


def test_a_part_of_the_data_has_whole_preferences(data: Dataset) -> None:
    part = limited(data.train, len(data.train) // 3)
    assert isinstance(part, Pairs) and part.per_source == 2 and part.n_pairs % 2 == 0
    texts = np.split(part.tokens, part.ends[:-1])
    for at in range(0, len(texts), 4):
        assert (texts[at] == texts[at + 2]).all()
    assert 0 < len(part) <= len(data.train) // 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.jsonl",
            '{"prompt": "a", "chosen": "b"}\n',
            'has no prompt, chosen and rejected; allowed: {"prompt"',
        ),
        (
            "a.jsonl",
            '{"prompt": "a", "chosen": "b", "rejected": "b"}',
            "line 1 has the same answer as chosen and rejected",
        ),
        (
            "a.csv",
            "prompt,chosen,worse\n",
            "a.csv:1: there is no column rejected; allowed: a first line with",
        ),
        ("a.tsv", "a\tb\tc", "a.tsv cannot hold prompt, chosen and rejected; allowed: .jsonl, .csv"),
    ],
)
def test_a_file_without_preferences_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        prepare("preferences", "char", str(tmp_path / name))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1
