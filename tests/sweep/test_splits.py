"""What a study reads of its splits: the whole validation split of what it chooses, and never the test split."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sweeplab.data.baselines import find_baseline
from sweeplab.lab.listing import StudyTrials
from sweeplab.runs.inspecting import scored
from sweeplab.study.options import Pruner
from sweeplab.study.spec import Budget, ObjectiveSpec
from sweeplab.study.values import Choices
from sweeplab.sweep.loop import Loop
from sweeplab.tracking.models import LoadedRun, load_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")
TIMES = ("wall_seconds", "eval_seconds", "tokens_per_second", "started", "ended")


def train(spec, opened, dataset, **more):
    folder, store = opened(spec)
    Loop(store, dataset, folder, **more).run()
    return folder


def numbers(folder):
    """Return all that is recorded of a study's runs, but for times."""

    def untimed(said):
        return {name: value for name, value in said.items() if name not in TIMES}

    found = {}
    for run in folder.runs():
        if (run.path / "best").exists():
            facts = json.loads((run.path / "best" / "model.json").read_bytes())
            points = [untimed(point.as_json()) for point in run.points()]
            found[run.read_start().key] = (points, untimed(run.read_end().as_json()), facts)
    return found


def opened_run(run):
    loaded = load_checkpoint(run.path / "best")
    return LoadedRun("run", loaded.model, loaded.tokenizer, loaded.values, {})


@pytest.mark.slow
def test_nothing_that_trains_prunes_or_chooses_reads_the_test_split(
    tiny, opened, dataset, tmp_path
):
    random = np.random.default_rng(0)
    poison = random.integers(0, dataset.tokenizer.vocab_size, len(dataset.test)).astype(
        np.uint16
    )
    dataset = replace(dataset, train=dataset.train[:20_000])
    poisoned = replace(dataset, test=poison)
    pruner = Pruner(type="threshold", options={"upper": 4.5, "n_warmup_steps": 5})
    search = {"learning_rate": Choices((1e-6, 1e-2, 2e-2))}
    found = []
    for name, data in (("clean", dataset), ("poisoned", poisoned)):
        spec = tiny(
            name=name,
            pruner=pruner,
            search=search,
            seeds=[0, 1],
            budget=Budget(trials_per_cell=5),
        )
        folder = train(spec, opened, data)
        values = next(folder.runs()).read_start().values
        found.append((numbers(folder), find_baseline(data, values, tmp_path / name)))
    assert found[0] == found[1]
    assert len(found[0][0]) >= 2
    run = opened_run(next(run for run in folder.runs() if (run.path / "best").exists()))
    clean, bad = (
        scored(run, data, "test", whole=True)["test_loss"] for data in (dataset, poisoned)
    )
    assert bad > clean + 0.1, "who asks for the test split gets it"
    swapped, clean = (
        replace(each, val=each.test, token_digest=name)
        for name, each in (("p", poisoned), ("c", dataset))
    )
    assert (
        find_baseline(swapped, run.values, tmp_path).loss
        > find_baseline(clean, run.values, tmp_path).loss
    )


@pytest.mark.parametrize("at", ["best", "final"])
def test_the_chosen_trial_is_evaluated_on_the_whole_split_when_all_have_ended(
    at, tiny, opened, dataset
):
    spec = tiny(
        objective=ObjectiveSpec(at=at), budget=Budget(trials_per_cell=3), seeds=[0, 1],
        search={"learning_rate": Choices((1e-4, 1e-2, 0.3))},
        track={"checkpoints": "best" if at == "best" else "last"},
    )  # fmt: skip
    folder = train(spec, opened, dataset)
    chosen = StudyTrials(folder).choice()
    evaluated = {chosen.place, *chosen.rivals}
    for run in folder.runs():
        end = run.read_end()
        said = getattr(end, f"{at}_whole_val_loss"), getattr(end, f"{at}_whole_bits_per_byte")
        assert end.value is not None and end.whole_val_loss == said[0]
        if (run.cell, run.trial) not in evaluated:
            assert said == (None, None)
            continue
        loaded = load_checkpoint(run.checkpoint())
        values = loaded.values.replace(eval_full=True)
        again = scored(LoadedRun("run", loaded.model, loaded.tokenizer, values, {}), dataset)
        assert said == pytest.approx((again["val_loss"], again["bits_per_byte"]), rel=1e-6)
    assert evaluated and len(evaluated) < 3
