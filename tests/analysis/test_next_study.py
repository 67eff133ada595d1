"""The candidates of a study's next runs: its own cells and larger ones, counted as its points are."""

import pytest

from sweeplab.analysis.next_study import candidate_study, cell_candidates
from sweeplab.errors import BadInput
from sweeplab.lab.studies import write_study
from sweeplab.laws.columns import Conventions, Counting
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import Engine
from sweeplab.sweep.planning import make_plan

STUDY = """\
name: small
data: {corpus: python-docs, tokenizer: char}
fixed: {n_layer: 1, block_size: 16, batch_size: 4, dropout: 0.0, eval_iters: 1, device: cpu}
grid: {activation: [gelu, relu], n_embd: [16, 32], max_iters: [20, 80, 320]}
search:
  learning_rate: {min: 3e-3, max: 3e-2, log: true}
  n_head: {expr: "max(1, n_embd // 16)"}
  warmup_iters: {expr: max_iters // 10}
constraints: ["n_params <= 2e6"]
budget: {trials_per_cell: 3}
seeds: [0, {seed: 4, when: n_embd == 32}]
"""


def folder_of(text, tmp_path):
    """Return the folder that a study has once it has been started, and its data's sizes."""
    (tmp_path / "written.yaml").write_text(text)
    spec = read_study(tmp_path / "written.yaml")
    folder = StudyFolder(tmp_path / "lab", spec.name)
    plan, _, dataset = make_plan(spec, folder.lab)
    folder.path.mkdir(parents=True)
    write_study(spec, folder, plan.data)
    return folder, dataset.sizes


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return folder_of(STUDY, tmp_path_factory.mktemp("next"))


@pytest.fixture(scope="module")
def candidates(small):
    return cell_candidates(candidate_study(small[0]), small[1], Counting())


@pytest.mark.slow
def test_the_candidates_are_the_studys_own_cells_and_some_between_and_above(small, candidates):
    spec = candidate_study(small[0])
    assert len(spec.seeds) == 1
    assert spec.grid["activation"] == ["gelu", "relu"]
    assert spec.grid["n_embd"] == [16, 32, 64, 128, 256]
    assert spec.grid["max_iters"] == [20, 40, 80, 160, 320, 1280, 5120, 20480]
    found = candidates
    assert len(found.cost) == 2 * 5 * 8 and max(found.columns["params"]) <= 2e6
    # No stack is timed, which takes many seconds.
    alone = spec.model_copy(update={"engine": Engine(stack=1)})
    plan = make_plan(alone, small[0].lab)[0]
    assert [dict(cell) for cell in found.cells] == [each.values for each in plan.cells]
    assert found.columns["params"] == pytest.approx([each.n_params for each in plan.cells])
    assert found.columns["tokens"] == pytest.approx([each.train_tokens for each in plan.cells])
    assert found.columns["flops"] == pytest.approx([each.train_flops for each in plan.cells])
    assert found.cost.sum() == pytest.approx(plan.train_flops)


def test_counted_as_the_points_are(small, candidates):
    spec, total = candidate_study(small[0]), candidates
    own = cell_candidates(spec, small[1], Counting(Conventions(params="non-embedding")))
    columns = {"params": "n_params_non_embedding", "tokens": "train_tokens*2"}
    named = cell_candidates(spec, small[1], Counting(columns=columns))
    assert (own.columns["params"] < total.columns["params"]).all()
    assert named.columns["params"] == pytest.approx(own.columns["params"])
    assert named.columns["tokens"] == pytest.approx(2 * own.columns["tokens"])
    assert named.cost == pytest.approx(total.cost)
    with pytest.raises(BadInput, match="a run to come: no column 'n_parms'"):
        cell_candidates(spec, small[1], Counting(columns={"params": "n_parms"}))


def test_a_grid_without_sizes_is_refused(tmp_path):
    text = STUDY.replace(
        "n_embd: [16, 32], max_iters: [20, 80, 320]", "tie_weights: [true, false]"
    )
    folder, _ = folder_of(text.replace("name: small", "name: flat"), tmp_path)
    with pytest.raises(BadInput, match="the grid of flat has no size to vary"):
        candidate_study(folder)
