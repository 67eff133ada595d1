"""Two options that set the same thing differently: every pair is refused in the same words, whichever comes first."""

from itertools import permutations

import pytest

# The ways to set one thing on the command line of `plan`, each to another value; overrides stand without their -o.
SETTINGS = {
    "n_layer": [
        *(
            "num_layers=4",
            "fixed.n_layer=5",
            "fixed={n_layer: 6}",
            "grid.n_layer=[1, 2]",
            "search.n_layer=[1, 4]",
        ),
        *(
            "cells=[{n_layer: 1}, {n_layer: 2}]",
            "--grid n_layer=1,5",
            "--search n_layer=1..4",
            "--search n_layer",
        ),
    ],
    "dropout": [
        "dropout=0.1",
        "--search dropout=0..0.2",
        "--search dropout,eps",
        "search.dropout=[0, 0.3]",
    ],
    "length": ["max_iters=70", "fixed.epochs=5", "--grid max_iters=10,20", "--grid epochs=1,2"],
    "engine": ["engine.type=ray", "engine.type=local", "--engine slurm"],
    "pruner": ["pruner=median", "pruner.type=asha", "pruner={type: hyperband}"],
    "name": ["name=a", "--name b"],
}
# Options of other commands, of which the first excludes each of the others.
ALTERNATIVES = [
    (
        "init mine",
        "--grid n_layer=1,2",
        "--grid num_layers=1,4",
        "--search n_layer=1..4",
        "--search n_layer",
    ),
    ("init mine", "--search n_layer=1..4", "--search num_layers=1..5", "--search eps,n_layer"),
    ("laws predict runs.csv", "--at params=1e6", "--targets larger.csv"),
    (
        "generate text --prompt a",
        "--beams 2",
        "--greedy",
        "--top-k 3",
        "--top-p 0.5",
        "--temperature 1",
        "--seed 0",
    ),
    ("plan FILE", "--layers", "--coordinates", "--bench"),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_replaces_another(setting, cli, folder):
    (folder / "mine.yaml").write_text(
        "name: mine\ndata: {corpus: python-docs, tokenizer: char}\n"
    )
    command = "run" if setting == "engine" else "plan"
    for pair in permutations(SETTINGS[setting], 2):
        words = [each if each.startswith("--") else f"-o {each}" for each in pair]
        check_refused(cli, f"{command} mine.yaml", words, words)


@pytest.mark.parametrize("alternatives", ALTERNATIVES, ids=lambda each: " ".join(each[:2]))
def test_no_option_replaces_another(alternatives, cli, folder):
    command, first, *others = alternatives
    for pair in ((first, other) for other in others):
        # A name alone, or an option of `init`, stands as it was given; other options without their values.
        names = [each if command == "init mine" else each.split()[0] for each in pair]
        check_refused(cli, command, pair, names)
        check_refused(cli, command, pair[::-1], names)
    assert not [*folder.iterdir()]


def check_refused(cli, command, pair, names):
    said = cli(*command.split(), *(word for each in pair for word in each.split(" ", 1)))
    assert said.code == 2 and not said.out, pair
    starts = [
        f"error: {' and '.join(order)} exclude each other; " for order in permutations(names)
    ]
    # A whole section beside one of its hyperparameters may be an error there.
    starts += [f"error: {name}: " for name in names if "={" in name or "cells=" in name]
    lines = [line for line in said.err.splitlines() if line.startswith(tuple(starts))]
    assert any("exclude each other; allowed: one of them" in line for line in lines), (
        pair,
        said.err,
    )
