from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from sweeplab.hyperparameters import TABLE
from sweeplab.study.file.reading import read_study
from sweeplab.study.file.schema import study_schema
from sweeplab.study.options import PRUNERS, SAMPLERS
from sweeplab.study.space import Space, cells
from sweeplab.sweep.planning import make_plan

NINE = Path(__file__).parents[1] / "faults" / "nine.yaml"
STUDIES = Path(__file__).parents[2] / "studies"


def fits(value, schema) -> bool:
    return Draft7Validator(schema).is_valid(value)


@pytest.fixture(scope="module")
def schema():
    Draft7Validator.check_schema(study_schema())
    return study_schema()


def load(text: str):
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_study_fits_the_schema_and_refers_to_it(schema, path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=./.schema.json\n")
    assert fits(load(text), schema)


@pytest.mark.parametrize(
    "text",
    [
        "sampler: {type: cmaes, sigma0: 0.3}",
        "pruner: {type: patient, patience: 3, wrapped: median}",
        "pruner: {type: hyperband, min_iters: 10, max_iters: 100, factor: 3}",
        "budget: {time: 1h30m, flops: 1.0e15}",
        "search: {n_head: {divides: n_embd, min: 1, max: 8}, min_lr: {min: 0.1, max: 1, when: lr_decay}}",
        "fixed: {patience: null, device: auto, betas: [0.9, 0.95]}",
    ],
)
def test_what_the_reader_takes_fits(schema, text):
    base = {"name": "a", "data": {"corpus": "python-docs", "tokenizer": "char"}}
    assert fits(base | load(text), schema)


@pytest.mark.parametrize(
    "text",
    [
        "bugdet: {}",
        "fixed: {n_layers: 1}",
        "fixed: {n_layer: 0}",
        "fixed: {n_layer: a}",
        "fixed: {seed: 1}",
        "fixed: {betas: [0.9]}",
        "fixed: {activation: reul}",
        "grid: {n_layer: 1}",
        "grid: {n_layer: []}",
        "search: {device: [cpu]}",
        "search: {activation: {min: 1, max: 2}}",
        "search: {dropout: {min: 0}}",
        "search: {dropout: {min: 0, max: 0.1, stp: 1}}",
        "search: {norm: suggested}",
        "sampler: tpee",
        "sampler: {type: tpe, seed: 1}",
        "pruner: {type: percentile}",
        "data: {corpus: python-doc, tokenizer: char}",
        "seeds: []",
        "engine: {workers: 0}",
        "constraints: [3]",
    ],
)
def test_what_the_reader_refuses_does_not_fit(schema, text):
    base = {"name": "a", "data": {"corpus": "python-docs", "tokenizer": "char"}}
    assert fits(base, schema)
    assert not fits(base | load(text), schema)


def test_every_row_and_algorithm_is_explained(schema):
    sections = schema["properties"]
    assert list(sections["fixed"]["properties"]) == [name for name in TABLE if name != "seed"]
    for section in ("fixed", "grid", "search"):
        for name, row in sections[section]["properties"].items():
            assert TABLE[name].meaning in row["description"]
    for section, kinds in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        named = {form["const"]: form["description"] for form in sections[section]["anyOf"][0]["anyOf"]}
        assert {name: kind.meaning for name, kind in kinds.items()}.items() <= named.items()


def space_of(name: str) -> tuple[Space, dict]:
    spec = read_study(STUDIES / f"{name}.yaml")
    (cell,), _ = cells(spec, 65)
    space = Space(spec, cell, 65)
    return space, next(space.draws(1))


@pytest.mark.slow
def test_the_small_study_has_eight_widths_at_one_depth_and_two_other_cells(tmp_path):
    spec = read_study(STUDIES / "small.yaml")
    kept, excluded = cells(spec, 97)
    sizes = [(cell.values["n_layer"], cell.values["n_embd"]) for cell in kept]
    assert sorted(width for depth, width in sizes if depth == 2) == [24, 30, 36, 42, 48, 54, 60, 66]
    assert [size for size in sizes if size[0] != 2] == [(1, 24), (3, 24)]
    assert (len(excluded), spec.budget.trials_per_cell, spec.fixed["tokens_per_param"]) == (14, 3, 12)
    plan, *_ = make_plan(spec, tmp_path)
    assert plan.warnings == [] and max(cell.train_tokens for cell in plan.cells) < plan.data.train_tokens


def test_a_patience_and_a_pruner_without_effect_are_told(tmp_path):
    spec = read_study(NINE, ["dtype=float32"])
    plan, *_ = make_plan(spec, tmp_path)
    assert plan.warnings == [] and plan.cells[0].rungs == [300, 900]
    never = ["dtype=float32", "patience=15", "pruner.min_iters=1500"]
    plan, *_ = make_plan(read_study(NINE, never), tmp_path)
    assert [each.partition(":")[0] for each in plan.warnings] == [
        "patience never stops a run", "the pruner never prunes",
    ]  # fmt: skip


def test_the_tables_study_is_the_table():
    space, values = space_of("table")
    searched = {"learning_rate", "weight_decay", "dropout", "warmup_iters"}
    assert set(space.parameters) == searched
    spec = read_study(STUDIES / "table.yaml")
    assert spec.fixed == {name: TABLE[name].default for name in spec.fixed} and len(spec.fixed) > 30
    assert values.n_layer == 3
