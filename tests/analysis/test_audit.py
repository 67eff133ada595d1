"""The audit: every check answers on any study, finds what was planted, and is silent where nothing was."""

from __future__ import annotations

import json
from functools import cache

import pandas as pd
import pytest
from analysis.planted_study import ITERATIONS, SIZES, plant

from sweeplab.analysis.audit import CHECKS, CLEAR, FOUND, UNKNOWN, AuditTable, audit, gather
from sweeplab.analysis.studies import study_points, with_tuning
from sweeplab.analysis.table import COLUMNS
from sweeplab.analysis.trials import StudyDesign
from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions
from sweeplab.laws.doubts import tuning_of
from sweeplab.study.search import Choices, Range

TEXT = 2_000_000  # tokens; the longest runs read 6.6 million
CELLS = len(SIZES) * len(ITERATIONS)
GRID = ("n_layer", "n_embd", "max_iters")
TUNED = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "batch_size": Choices((8, 16, 32)),
    "betas": Choices(((0.9, 0.95), (0.9, 0.99), (0.9, 0.999))),
}


BATCHES, BETAS = (8, 16, 32), ("(0.9, 0.95)", "(0.9, 0.99)", "(0.9, 0.999)")


def clean(seeds: int = 3, change=lambda run: {}) -> pd.DataFrame:
    """Return a study of three trials a cell that differ in rate, batch and betas; the middle one is the best."""

    def tuned(run: dict) -> dict:
        batch = BATCHES[run["trial"]]
        length = run["max_iters"] * 16 // batch
        own = {"batch_size": batch, "betas": BETAS[run["trial"]], "max_iters": length, "iterations": length}
        own |= {"warmup_iters": length // 10}
        return own | change(run | own)

    return plant(seeds=seeds, change=tuned)


@cache
def clean_evidence(conventions: Conventions | None = None) -> AuditTable:
    return gather(clean(), {"planted": StudyDesign(GRID, TUNED, TEXT)}, conventions)


def look_at(name: str, evidence: AuditTable):
    """Return what one check says."""
    (check,) = (check for check in CHECKS if check.name == name)
    return check.look(evidence)


def look(name: str, runs: pd.DataFrame, conventions: Conventions | None = None, **search):
    return look_at(name, gather(runs, {"planted": StudyDesign(GRID, TUNED | search, TEXT)}, conventions))


STUDIES = {
    "clean": clean,
    "one trial, one seed": lambda: plant(seeds=1, rates=(1e-3,)),
    "two cells": lambda: plant(seeds=1).query("n_layer == 1 and max_iters < 500").reset_index(drop=True),
    "nothing but what is measured": lambda: plant(seeds=2)[[*COLUMNS]],
    "all stopped": lambda: plant(
        change=lambda run: {"state": "stopped", "iterations": run["max_iters"] // 2}
    ),
    "settings that are not known": lambda: (
        clean()
        .assign(
            learning_rate=None, betas=None, warmup_iters=None, vocab_size=None, n_params_non_embedding=None
        )
        .convert_dtypes()
    ),
}


@cache
def evidence_of(name: str) -> AuditTable:
    return gather(STUDIES[name]())


# Of the others whose checks fit laws again, as of what is sound, one is in every run of the tests.
FITTED = ("one trial, one seed", "all stopped", "settings that are not known")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in FITTED else each for each in STUDIES]
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_answers_on_any_study(check, name: str) -> None:
    evidence = evidence_of(name)
    finding = check.look(evidence)
    assert finding.state in (FOUND, CLEAR, UNKNOWN)
    assert finding.sentence and "nan" not in finding.sentence and "\n" not in finding.sentence
    assert set(finding.points) <= set(evidence.points.names)
    assert bool(finding.points) or finding.state != FOUND, "what is found is found somewhere"
    assert not finding.effects or finding.state == FOUND
    for effect in json.loads(json.dumps(finding.as_dict()))["effects"]:
        assert bool(effect["why"]) != bool(effect["exponents"])
        for exponent in effect["exponents"].values():
            for side in (exponent["before"], exponent["after"]):
                assert (side["value"] is None) == (side["verdict"] == "not identified")
    assert check.question.endswith("?")


@pytest.mark.slow
def test_a_clean_study_has_only_its_embeddings_to_be_asked_about() -> None:
    found = audit(clean_evidence())
    states = {each["name"]: each["state"] for each in found["findings"]}
    assert states == dict.fromkeys(states, CLEAR) | {"embeddings": FOUND}
    assert (found["law"], found["n_points"]) == ("chinchilla", CELLS)


@pytest.mark.slow
def test_embeddings_and_what_they_do_to_the_exponents() -> None:
    runs = clean()
    finding = look_at("embeddings", clean_evidence())
    part = 1 - runs["n_params_non_embedding"] / runs["n_params"]
    assert f"embeddings are 0.86% to {part.max():.0%} of N; over 10% in 8 of 20" in finding.sentence
    (effect,) = finding.as_dict()["effects"]
    alpha = effect["exponents"]["alpha"]
    assert alpha["before"]["value"] == pytest.approx(0.4, abs=0.008), (
        "the truth was planted in all parameters"
    )
    assert alpha["after"]["value"] < alpha["before"]["value"] - 0.05 and alpha["differs"]
    other = clean_evidence(Conventions(params="non-embedding"))
    assert look_at("embeddings", other).state == CLEAR


@pytest.mark.slow
def test_a_head_that_is_left_out() -> None:
    kaplan = Conventions(params="non-embedding", flops="6nd")
    finding = look_at("head", clean_evidence(kaplan))
    assert finding.state == FOUND
    assert {name.split(",")[1] for name in finding.points} == {"n_embd=16"}
    assert finding.effects[0].after["alpha"].identified
    assert look_at("head", clean_evidence(Conventions(flops="6nd"))).state == CLEAR, (
        "a tied head is in the total"
    )
    untied = clean(change=lambda run: {"tie_weights": False})
    assert look("head", untied, kaplan).state == CLEAR, "a head of its own is no embedding"


def of_length(*lengths: int):
    return lambda name: any(f"max_iters={length}/" in name for length in lengths)


BAD = {
    "warm-up": (
        lambda run: {"warmup_iters": 50},
        of_length(100, 400),
        "the warm-up is 0.78% to 50% of a run; over 10% in 10 of 20 points",
    ),
    "decay": (
        lambda run: {"state": "stopped", "iterations": run["max_iters"] // 2} if run["n_layer"] == 2 else
        {} if run["n_layer"] > 2 else
        {"min_lr": 5e-4} if run["train_tokens"] == 102_400 else {"scheduler_type": "constant"},
        lambda name: name.startswith(("n_layer=1", "n_layer=2")),
        "12 of 20 points end with over 20% of the peak rate: 8 stopped before the cosine's end, "
        "3 with a learning rate that never decays, 1 with a min_lr near the peak",
    ),
    "learning-rate": (
        lambda run: {"learning_rate": 1e-3} if run["n_layer"] == 6 else {},
        lambda name: name.startswith("n_layer=6"),
        "learning_rate has one value in 4 of 20 points: larger models usually need a lower one",
    ),
    "batch-size": (
        lambda run: {"batch_size": 16, "max_iters": run["max_iters"] * run["batch_size"] // 16},
        lambda name: True,
        "batch_size is 16 in every run: longer runs usually need a larger one",
    ),
    "betas": (
        lambda run: {"betas": "(0.9, 0.95)" if run["n_embd"] < 100 else "(0.9, 0.99)"},
        lambda name: True,
        "betas goes from (0.9, 0.95) to (0.9, 0.99), but no size tried two values",
    ),
    "cut-short": (
        lambda run: {"state": "stopped"} if run["n_layer"] == 1 else
        {"state": "pruned", "best_val_loss": 1.0} if (run["n_layer"], run["trial"]) == (6, 2) else {},
        lambda name: name.startswith(("n_layer=1", "n_layer=6")),
        "4 of 20 points come from runs that stopped early: they were trained on fewer tokens than their schedule was "
        "planned for; 4 have a higher loss than one of their pruned trials already had: the pruner was too aggressive",
    ),
}  # fmt: skip
# Of two that are found by one rule one is slow.
ALIKE = ("decay", "batch-size")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) if each in ALIKE else each for each in BAD]
)
def test_what_was_planted_is_found_where_it_was(name: str) -> None:
    change, touched, sentence = BAD[name]
    evidence = gather(clean(change=change), {"planted": StudyDesign(GRID, TUNED, TEXT)})
    finding = look_at(name, evidence)
    assert finding.state == FOUND and finding.sentence.startswith(sentence)
    assert set(finding.points) == {each for each in evidence.points.names if touched(each)}
    (effect,) = finding.effects
    if len(finding.points) == CELLS:
        assert effect.why == "every point is affected: there is no fit without them"
    else:
        assert effect.n_points == CELLS - len(finding.points)
        assert effect.after.keys() >= {"alpha", "beta"}


@pytest.mark.slow
def test_a_loss_that_rose_again_was_not_got_from_all_tokens() -> None:
    overfitted = clean(
        change=lambda run: {"final_val_loss": 2.0 * run["best_val_loss"]} if run["n_layer"] == 6 else {}
    )
    finding = look("best-before-end", overfitted)
    assert finding.sentence.startswith(
        "the loss of a point is that of its best evaluation; its last one is over 0.5% higher in 4 of 20 points, "
        "up to 100%"
    )
    assert all(name.startswith("n_layer=6") for name in finding.points) and finding.effects[0].n_points == 16
    assert look("best-before-end", overfitted, Conventions(at="final")).state == CLEAR


@pytest.mark.slow
def test_points_that_are_the_best_of_unlike_numbers_of_trials() -> None:
    runs = clean()
    finding = look("chosen-among", runs[(runs["n_layer"] > 1) | (runs["trial"] == 1)])
    assert finding.sentence.startswith("points are the best of 1 to 3 trials")
    assert len(finding.points) == 4 and all(name.startswith("n_layer=1") for name in finding.points)
    pruned = clean(
        change=lambda run: {"state": "pruned"} if run["trial"] == 2 and run["n_layer"] == 1 else {}
    )
    assert look("chosen-among", pruned).state == CLEAR, "what was pruned was tried"


@pytest.mark.slow
def test_lengths_that_rounding_alone_keeps_apart_are_one_budget() -> None:
    runs = clean()
    # 100 iterations of 16 rows are 66.7 of 24: 67 of them read half a percent more.
    rounded = clean(
        change=lambda run: (
            {"batch_size": 24, "max_iters": round(run["max_iters"] * run["batch_size"] / 24)}
            if run["trial"] == 1
            else {}
        )
    )
    for table in (runs, rounded):
        assert gather(table).points.n == CELLS


@pytest.mark.slow
def test_a_warm_up_that_hurts_moves_the_exponent_and_leaving_it_out_brings_it_back() -> None:
    def slow(run: dict) -> dict:
        part = 20 * 1024 / run["train_tokens"]
        loss = run["best_val_loss"] * (1 + max(0, part - 0.1))
        return {"warmup_iters": part * run["max_iters"], "best_val_loss": loss}

    (effect,) = look("warm-up", clean(change=slow)).as_dict()["effects"]
    beta = effect["exponents"]["beta"]
    assert beta["differs"] or beta["before"]["value"] is None
    assert beta["after"]["value"] == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
def test_a_warm_up_that_does_not_hurt_is_told_and_moves_nothing() -> None:
    runs = clean(change=lambda run: {"warmup_iters": 20 * 1024 * run["max_iters"] / run["train_tokens"]})
    (effect,) = look("warm-up", runs).as_dict()["effects"]
    assert effect["exponents"].keys() == {"alpha", "beta", "N_opt exponent", "D_opt exponent"}
    for each in effect["exponents"].values():
        assert each["after"]["value"] == pytest.approx(each["before"]["value"], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"scheduler_type": "wsd", "decay_share": 0.2}, CLEAR),
        ({"scheduler_type": "wsd", "decay_share": None}, UNKNOWN),
        ({"scheduler_type": "inverse_sqrt"}, FOUND),
    ],
)
def test_where_newer_schedules_end(changed: dict, state: str) -> None:
    assert look("decay", clean(change=lambda run: changed)).state == state


@pytest.mark.slow
def test_plateau_does_not_say_where_it_ends() -> None:
    finding = look("decay", clean(change=lambda run: {"scheduler_type": "plateau"}))
    assert (finding.state, len(finding.points)) == (UNKNOWN, CELLS)


def test_a_study_without_an_end() -> None:
    with pytest.raises(BadInput, match="no run of the study has ended"):
        gather(clean().assign(state="failed"))


def test_how_a_study_was_tuned_follows_from_what_its_trials_searched() -> None:
    design = StudyDesign(GRID, TUNED, TEXT)
    each = with_tuning(study_points(clean()), clean(), None, design)
    assert each.tuned == "each" and "batch_size" not in each.tuned_why
    assert tuning_of(each).record is not None
    one = plant(rates=(1e-3,))
    shared = with_tuning(study_points(one), one, None, StudyDesign(GRID, {}, TEXT))
    assert shared.tuned == "shared" and tuning_of(shared).record is None
    assert "learning_rate, batch_size and betas are one for all sizes" in shared.tuned_why
    mup = one.assign(parametrization="mup")
    assert with_tuning(study_points(one), mup, None, StudyDesign(GRID, {}, TEXT)).tuned == "unknown"
