from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML

from sweeplab.study.file.template import study_schema

STUDIES = Path(__file__).parents[2] / "studies"


def fits(value, schema):
    return Draft7Validator(schema).is_valid(value)


@pytest.fixture(scope="module")
def schema():
    Draft7Validator.check_schema(study_schema())
    return study_schema()


def load(text):
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
        "pruner: {type: hyperband, min_iters: 10, max_iters: 100, factor: 3}",
        "budget: {time: 1h30m, flops: 1.0e15}",
        "search: {n_head: [1, 8], min_lr: {min: 0.1, max: 1, when: lr_decay}}",
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
        "fixed: {seed: 1}",
        "fixed: {betas: [0.9]}",
        "fixed: {activation: reul}",
        "grid: {n_layer: 1}",
        "search: {device: [cpu]}",
        "search: {activation: {min: 1, max: 2}}",
        "search: {dropout: {min: 0, max: 0.1, stp: 1}}",
        "search: {norm: suggested}",
        "sampler: tpee",
        "pruner: {type: percentile}",
        "data: {corpus: python-doc, tokenizer: char}",
        "engine: {workers: 0}",
        "constraints: [3]",
    ],
)
def test_what_the_reader_refuses_does_not_fit(schema, text):
    base = {"name": "a", "data": {"corpus": "python-docs", "tokenizer": "char"}}
    assert fits(base, schema)
    assert not fits(base | load(text), schema)
