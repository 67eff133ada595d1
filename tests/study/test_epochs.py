"""How long runs train: by epochs, by tokens a parameter, and what is a share of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeplab.data import DataSizes
from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_plain, read_study
from sweeplab.study.rules import facts
from sweeplab.study.space import spaces_of
from sweeplab.train.run import train_tokens

SIZES = DataSizes(65, train_tokens=10_000)


def written(**parts):
    return {"name": "e", "data": {"corpus": "python-docs", "tokenizer": "char"}, **parts}


def resolved(sampled=None, sizes=SIZES, **parts):
    return spaces_of(read_plain(written(**parts)), sizes)[0][-1].resolve(sampled or {}, 0)


def test_an_epoch_has_as_many_sequences_as_the_training_split():
    fixed = {"block_size": 16, "batch_size": 4}
    assert resolved(fixed=fixed | {"epochs": 3}).max_iters == math.ceil(3 * 10_000 / 64)
    assert resolved(fixed=fixed | {"epochs": 3, "data_limit": 2_000}).max_iters == math.ceil(
        3 * 2_000 / 64
    )
    pairs = DataSizes(65, train_tokens=10_000, train_pairs=101)
    assert resolved(fixed=fixed | {"epochs": 2}, sizes=pairs).max_iters == math.ceil(202 / 4)


@given(
    n_embd=st.sampled_from([8, 24, 64]),
    ratio=st.floats(0.1, 300),
    total=st.booleans(),
    auto=st.booleans(),
)
def test_tokens_per_param_are_reached_in_the_fewest_steps(n_embd, ratio, total, auto):
    counted = "total" if total else "non_embedding"
    fixed = {"n_embd": n_embd, "n_head": 4, "block_size": 16, "batch_size": 4}
    fixed |= {"tokens_per_param": ratio, "params_counted": counted} | (
        {} if auto else {"vocab_size": 80}
    )
    values = resolved(fixed=fixed)
    known = facts(values)
    goal = ratio * (known.n_params if total else known.n_params_non_embedding)
    assert known.train_tokens >= goal
    assert values.max_iters == 1 or train_tokens(values, values.max_iters - 1) < goal


@pytest.mark.parametrize(
    ("written_as", "name", "value"),
    [
        ({"warmup_iters": "5%"}, "warmup_iters", 10),
        ({"eval_interval": "12.5% of all steps"}, "eval_interval", 25),
        ({"min_lr": "10%"}, "min_lr", pytest.approx(2e-4)),
    ],
)
def test_a_share_is_one_of_each_runs_length(written_as, name, value):
    values = resolved(fixed={"max_iters": 200, "learning_rate": 2e-3, **written_as})
    assert getattr(values, name) == value


@pytest.mark.parametrize(
    ("fixed", "name", "text"),
    [
        ({"tokens_per_param": 10}, "batch_size", "max_iters // 10"),
        ({"epochs": 2}, "batch_size", "train_tokens // 99"),
        ({}, "n_embd", "head_dim * 4"),
    ],
)
def test_what_a_value_follows_from_may_not_follow_from_it(fixed, name, text):
    why = rf"each of these needs itself or another of them: {name}"
    for changed in ({}, {"cells": [{}, {"head_dim": 8, "n_encoder_layer": 2}]}):
        with pytest.raises(BadInput, match=why):
            read_plain(written(fixed=fixed, search={name: {"expr": text}}, **changed))


@pytest.mark.parametrize(
    "parts",
    [
        {"fixed": {"epochs": 3, "max_iters": 5}},
        {"fixed": {"epochs": 5}, "cells": [{}, {"max_iters": 7}]},
        {"fixed": {"epochs": 5}, "grid": {"tokens_per_param": [10, 20]}},
    ],
)
def test_one_of_them_says_how_long(parts):
    with pytest.raises(
        BadInput, match=r"(max_iters|epochs) and \S+ exclude each other; allowed: one of them"
    ):
        read_plain(written(**parts))
    assert read_plain(written(fixed={"epochs": None, "max_iters": 5})).fixed["max_iters"] == 5


def test_the_command_line_takes_one_in_place_of_the_other(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\ndata: {corpus: python-docs, tokenizer: char}\npreset: nanogpt-char\nfixed: {epochs: 2}\n"
    )
    assert "max_iters" not in read_study(file).fixed, "not the preset's either"
    fixed = read_study(file, ["max_iters=70"]).fixed
    assert (fixed["max_iters"], fixed.get("epochs")) == (70, None)
    assert read_study(file, ["epochs=4"]).fixed["epochs"] == 4
