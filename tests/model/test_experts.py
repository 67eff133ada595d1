"""A mixture of experts against every expert's answer to every token, and its router's losses."""

import pytest
import torch
from model.cases import batch_of, losses_and_gradients, rows_of, shape_of

from sweeplab.model.blocks import Normed, Pass, experts
from sweeplab.model.shape import ACTIVATIONS
from sweeplab.model.transformer import Transformer

NAME = "blocks.0.feed_forward"


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("active", [1, 2, 4])
def test_every_token_gets_the_answers_of_its_best_experts(active: int, activation: str) -> None:
    shape = shape_of(n_expert=4, n_expert_active=active, activation=activation)
    model = Transformer(shape)
    w = model.layout.views(rows_of(model, 2).double() * 20)
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    p = Pass(shape, w, 2, 1)
    found = experts(p, NAME, None, Normed(x))
    apply = ACTIVATIONS[activation].apply
    for run in range(2):
        named = {name.split(".")[3]: weight[run] for name, weight in w.items() if name.startswith(NAME)}
        part = {name: weight for name, weight in named.items() if weight.ndim > 1}
        given = (x[run] @ part["router"]).softmax(dim=-1)
        up = torch.einsum("nc,ecf->enf", x[run], part["up"])
        hidden = (
            apply(torch.einsum("nc,ecf->enf", x[run], part["gate"])) * up if "gate" in part else apply(up)
        )
        answers = hidden @ part["down"]
        expected = torch.zeros_like(x[run])
        counts = torch.zeros(4, dtype=torch.float64)
        for token in range(30):
            best = given[token].argsort(descending=True)[:active]
            shares = given[token][best]
            shares = shares / shares.sum() if active > 1 else shares
            expected[token] = (shares[:, None] * answers[best, token]).sum(dim=0)
            counts[best] += 1 / (30 * active)
        torch.testing.assert_close(found[run], expected)
        (routing,) = p.routings
        torch.testing.assert_close(routing.use[run], counts)
        torch.testing.assert_close(routing.balance[run], 4 * (counts * given.mean(dim=0)).sum())
        z = (x[run] @ part["router"]).exp().sum(dim=-1).log().square().mean()
        torch.testing.assert_close(routing.z[run], z)


def test_the_router_learns_from_the_loss_with_one_active_expert() -> None:
    model = Transformer(shape_of(n_expert=3))
    _, gradient = losses_and_gradients(model, rows_of(model, 2), batch_of(model.shape, 2))
    routers = model.layout.views(gradient)[f"{NAME}.router.weight"]
    assert (routers.abs().sum(dim=(1, 2)) > 0).all()


def test_router_losses_are_each_runs_own_and_only_training_has_them() -> None:
    model = Transformer(shape_of(n_expert=3, n_layer=2))
    rows, batch = rows_of(model, 2), batch_of(model.shape, 2)
    views = model.layout.views(rows)
    plain = model.losses(views, batch)
    routings = model.routings(views, batch)
    assert len(routings) == 2
    weighed = model.losses(views, batch, router=(torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.25])))
    balance, z = sum(each.balance for each in routings), sum(each.z for each in routings)
    torch.testing.assert_close(weighed - plain, torch.stack([0.5 * balance[0], 0.25 * z[1]]))


def test_balance_is_one_when_all_experts_are_used_alike() -> None:
    model = Transformer(shape_of(n_expert=4, n_expert_active=4))
    views = model.layout.views(rows_of(model, 1))
    (routing,) = model.routings(views, batch_of(model.shape, 1))
    torch.testing.assert_close(routing.use, torch.full((1, 4), 0.25))
    torch.testing.assert_close(routing.balance, torch.ones(1))


def test_padding_has_no_part_in_the_routers_losses() -> None:
    shape = shape_of(n_expert=3)
    model = Transformer(shape)
    p = Pass(shape, model.layout.views(rows_of(model, 2)), 2, 3)
    x, lengths = torch.randn(2, 15, 8), torch.tensor([[2, 5, 1], [4, 3, 5]])
    present = torch.arange(5) < lengths.view(-1, 1)
    experts(p, NAME, present, Normed(x))
    for run in range(2):
        short = Pass(shape, {name: weight[run : run + 1] for name, weight in p.w.items()}, 1, 1)
        experts(short, NAME, None, Normed(x[run : run + 1, present[3 * run : 3 * run + 3].flatten()]))
        for found, expected in zip(p.routings[0], short.routings[0], strict=True):
            torch.testing.assert_close(found[run], expected[0])
