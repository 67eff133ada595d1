import json
import re

import pytest

from sweeplab.errors import BadInput
from sweeplab.expressions import Expression
from sweeplab.study.file.parse import MAX_BYTES, MAX_DEPTH, MAX_NODES
from sweeplab.study.file.reading import read_study
from sweeplab.study.values import Choices, Derived, Range

WHOLE = """\
name: small
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 64, batch_size: 16, max_iters: 300, betas: [0.9, 0.95], patience: null}
grid: {n_layer: [1, 2, 4], n_embd: [32, 64, 128]}
search:
  learning_rate: {min: 3e-4, max: 1e-2, log: true}
  weight_decay: suggested
  activation: [relu, gelu]
  n_head: suggested
  warmup_iters: {expr: max_iters // 10}
  min_lr: {min: 1e-6, max: 1e-4, log: true, when: lr_decay}
  dropout: {min: 0, max: 0.4, step: 0.1}
  grad_clip: {choices: [null, 1], when: n_layer > 1}
constraints: ["n_params <= 10e6"]
objective: {metric: val_loss, goal: minimize, at: final}
budget: {trials_per_cell: 4, time: 1h30m, flops: 1e15}
sampler: {type: tpe, n_startup_trials: 3}
pruner: {type: asha, min_iters: 100, factor: 3}
seeds: [0, 1]
engine: {type: local, workers: 2, stack: auto}
track: {checkpoints: none, uri: "sqlite:///x.db"}
"""
SMALL = "name: small\ndata: {corpus: python-docs, tokenizer: char}\n"


@pytest.fixture
def write(tmp_path):
    def write_study(text):
        path = tmp_path / "study.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_study


@pytest.fixture
def problems(write):
    """Return a function that reads a study and returns its problems' lines, without the file's name."""

    def read(text, *overrides):
        path = write(text)
        with pytest.raises(BadInput) as caught:
            read_study(path, overrides)
        return [str(each).removeprefix(f"{path}:") for each in caught.value.problems]

    return read


def test_every_part_is_typed(write):
    spec = read_study(write(WHOLE))
    assert spec.fixed == {
        "block_size": 64,
        "batch_size": 16,
        "max_iters": 300,
        "betas": (0.9, 0.95),
        "patience": None,
    }
    assert spec.grid == {"n_layer": [1, 2, 4], "n_embd": [32, 64, 128]}
    assert spec.search == {
        "learning_rate": Range(3e-4, 1e-2, log=True),
        "weight_decay": Range(1e-3, 0.3, log=True),
        "activation": Choices(("relu", "gelu")),
        "n_head": Choices((1, 2, 4, 8, 16)),
        "warmup_iters": Derived(Expression("max_iters // 10")),
        "min_lr": Range(1e-6, 1e-4, log=True, when=Expression("lr_decay")),
        "dropout": Range(0.0, 0.4, step=0.1),
        "grad_clip": Choices((None, 1.0), when=Expression("n_layer > 1")),
    }
    assert (spec.objective.at, spec.seeds, spec.engine.workers) == ("final", [0, 1], 2)
    assert (spec.budget.trials_per_cell, spec.budget.time, spec.budget.flops) == (4, 5400, 1e15)
    assert (spec.sampler.type, spec.sampler.options) == ("tpe", {"n_startup_trials": 3})
    assert (spec.pruner.type, spec.pruner.options) == (
        "asha",
        {"min_resource": 100, "reduction_factor": 3},
    )


def test_what_is_written_down_reads_back(write):
    spec = read_study(write(WHOLE))
    written = spec.as_written()
    assert read_study(write(json.dumps(written))).as_written() == written


def test_scalars_are_yaml_1_2(write):
    spec = read_study(
        write(
            "\ufeff"
            + SMALL
            + "fixed: {learning_rate: 3e-4, max_iters: 30_000, wandb_project: no}\n"
        )
    )
    assert spec.fixed == {"learning_rate": 3e-4, "max_iters": 30_000, "wandb_project": "no"}


@pytest.mark.parametrize("text", ["1_0e-4", "10_00", "0b11", "!!float 1_0"])
def test_a_number_of_another_language_than_yaml_1_2_is_none(problems, text):
    for line, overrides in ((f"fixed: {{dropout: {text}}}\n", ()), ("", [f"dropout={text}"])):
        (said,) = problems(SMALL + line, *overrides)
        assert "dropout is" in said and "allowed: a number" in said


@pytest.mark.parametrize("text", ["840 unknown keys", "one long value"])
def test_a_refusal_is_short_whatever_it_refuses(write, text):
    lines = {
        "840 unknown keys": "fixed: {"
        + ", ".join(f"{'x' * 40}{i}: 1" for i in range(840))
        + "}",
        "one long value": f"fixed: {{dropout: {'x' * 100_000}}}",
    }
    with pytest.raises(BadInput) as refused:
        read_study(write(SMALL + lines[text]))
    said = refused.value.lines
    assert str(refused.value) == "\n".join(said)
    assert len(said) <= 21 and len(str(refused.value)) <= 6000
    n_more = len(refused.value.problems) - (len(said) - 1)
    if n_more > 1:
        assert said[-1] == f"and {n_more:,} more problems"
    assert "study.yaml:3:" in said[0]


# The place of each problem is marked with a section sign.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "§program: train.py",
            'unknown key "program"; allowed: name, data, preset, ',
        ),
        ("§bugdet: {time: 30m}", "unknown key \"bugdet\".*did you mean 'budget'"),
        (
            "fixed: {§block_sise: 64}",
            "hyperparameter \"block_sise\"; did you mean 'block_size'",
        ),
        ("grid: {§n_layrs: [1]}", "did you mean 'n_layer'"),
        (
            "fixed: {§batch_size: many}",
            'batch_size is "many"; allowed: a whole number, at least 1, at most 65,536',
        ),
        ("fixed: {§max_iters: " + "9" * 5000 + "}", "is not a valid value"),
        (
            "fixed: {§activation: rellu}",
            "gelu . relu . relu2 . swiglu . geglu . gelu_tanh . geglu_tanh; did you mean 'relu'",
        ),
        ("fixed: {§dropout: {min: 0, max: 0.1}}", "put ranges and expressions under search"),
        ("fixed: {§seed: 3}", "set by the key seeds"),
        ("§fixed: [1]", "a mapping of hyperparameters"),
        ("grid: {§n_layer: []}", "a list of one or more"),
        ("grid: {n_layer: [1, 2, §1]}", "given twice"),
        (
            "fixed: {n_layer: 1}\ngrid: {§n_layer: [1]}",
            "fixed.n_layer and grid.n_layer exclude each other; allowed: one of them",
        ),
        (
            "search: {§learning_rate: {min: 1e-2, max: 1e-3}}",
            "inverted: min 0.01 is above max 0.001",
        ),
        ("search: {§learning_rate: {min: 1e-3, max: 1e-3}}", "empty"),
        ("search: {weight_decay: {§min: 0, max: 1, log: true}}", "a min above 0, or no log"),
        ("search: {§dropout: {min: 0}}", "max is missing"),
        ("search: {warmup_iters: {min: 1, max: 9, §step: 2, log: true}}", "either log or step"),
        ("search: {warmup_iters: {min: 0, max: 9, §step: 2}}", "one that divides the range"),
        ("search: {dropout: {min: 0, max: 0.2, §stp: 0.1}}", "did you mean 'step'"),
        ("search: {§activation: {min: 1, max: 2}}", "activation takes no range"),
        ("search: {§dropout: 0.1}", "under fixed"),
        ("search: {§dropout: sugested}", "did you mean 'suggested'"),
        ("search: {§norm: suggested}", "suggests no range"),
        ("search: {§device: [cpu]}", "cannot be searched: it depends on the machine"),
        ("grid: {§eval_tokens: [1024, 2048]}", "the same in the whole study"),
        (
            "fixed: {lr: 1e-3, §learning_rate: 1e-3}",
            "learning_rate. is given twice, first on line 3",
        ),
        (
            "fixed: {lr: 1e-3}\nsearch: {§max-lr: suggested}",
            "fixed.learning_rate and search.learning_rate exclude each other",
        ),
        ("§lr: 1e-3", "did you mean 'fixed.learning_rate'"),
        ("§seeds: 3", "allowed: a list"),
        (
            "grid: {lr: [1e-4, 1e-2]}\nconstraints: [§'lr > 1']",
            "'learning_rate > 1' where .*0.01",
        ),
        ("search: {warmup_iters: {§expr: max_itres // 10}}", "did you mean 'max_iters'"),
        ("search: {warmup_iters: {§expr: 'open(1)'}}", "not arithmetic"),
        ("search: {warmup_iters: {§expr: 10}}", "an expression, such as"),
        ("search: {warmup_iters: {§expr: seed}}", "may differ between the runs of a trial"),
        (
            "search: {§top_k: {expr: patience}, patience: {expr: top_k}}",
            "each of these needs itself or another of them: top_k, patience",
        ),
        ("search: {§min_lr: {min: 0, max: 1, when: min_lr > 0}}", "needs itself .*: min_lr"),
        (
            "search: {warmup_iters: {§expr: max_iters / 7}}",
            "no cell meets .* where max_iters is 300",
        ),
        ("constraints: [n_layer > 0, §n_param > 1]", "did you mean 'n_params'"),
        ("constraints: [§n_layer > 9]", "no cell meets 'n_layer > 9' where n_layer is 3"),
        (
            "§grid: {" + f"max_iters: {list(range(1, 999))}" + ", n_layer: [1, 2]}",
            "1,996 cells",
        ),
        ("objective: {§at: bst}", "best . final; did you mean 'best'"),
        ("budget: {§time: 30 minutes}", "30m, 2h, 90s, 1h30m"),
        ("budget: {§trials_per_cell: 0}", "at least 1"),
        ("§sampler: tpee", "tpe . gp .*did you mean 'tpe'"),
        ("§pruner: {factor: 3}", "type: …"),
        ("sampler: {type: tpe, §seed: 3}", 'unknown key "seed"'),
        ("pruner: {type: asha, §min_itres: 3}", "did you mean 'min_iters'"),
        ("pruner: {type: asha, §min_iters: 3, min_resource: 3}", "given twice, by two names"),
        (
            "§pruner: {type: asha, factor: 1}",
            "Optuna refuses these options: .*reduction_factor",
        ),
        ("§pruner: {type: percentile}", "percentile is missing"),
        ("§pruner: threshold", "Optuna refuses these options"),
        (
            "search: {dropout: suggested}\nfirst_trial: {§dropout: 0.9}",
            "which the search does not contain; allowed: 0 to 0.4",
        ),
        (
            "search: {dropout: {min: 0, max: 0.3}}\n§sampler: grid",
            "the grid sampler needs every parameter",
        ),
        ("§seeds: []", "a list of one or more"),
        ("§seeds: [1, 2, 1]", "1 more than once"),
        ("seeds: [§-1]", "at least 0, at most 2,147,483,647"),
        ("seeds: [0, {seed: 1, §when: n_embdd > 4}]", "did you mean 'n_embd'"),
        ("§seeds: [{seed: 1, when: n_embd > 4}]", "a first seed without a condition"),
        ("engine: {§workers: 0}", "a whole number, at least 1, at most 65,536, or auto"),
        ('"§seeds": [1]\n§seeds: [0]', "given twice, first on line"),
        ("§seeds: !!python/name:os.system x", "tag"),
        ("seeds:\n  ? §[a]\n  : b", "a key that is not a string"),
        ("fixed:\n§\tn_layer: 1", "a tab character; allowed: spaces"),
        ("seeds: [&a 0, §*a]", "the alias .a is not supported"),
        ("fixed: §]", "expected the node content"),
        ("track: §\0", "is not allowed"),
        ("seeds: " + "[" * (MAX_DEPTH - 1) + "§[", "nested too deeply"),
        ("§---\nname: other", "another document"),
    ],
    ids=lambda text: text[:60],
)
def test_a_problem_says_where_what_and_what_is_meant(problems, line, said):
    base = SMALL if "max_iters /" not in line else SMALL + "fixed: {max_iters: 300}\n"
    text = base + line
    found = problems(text.replace("§", ""))
    assert len(found) == 1, found
    assert re.search(said, found[0]), found
    assert found[0].startswith(_place(text)), found


def _place(text):
    before = text[: text.rindex("§")].replace("§", "")
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "


def test_all_problems_are_said_at_once_in_the_files_order(problems):
    found = problems(
        "nam: x\nname: a/b\ndata: {corpus: nowhere, tokenizer: chr}\nsearch: {n_embd: {min: 9, max: 1}}\n"
        "fixed: {n_head: 7, seed: 1}\nbudget: {time: soon}\npruner: {type: asha, factr: 2}\nseeds: [0, 0]\n"
        "track: {checkpoints: best, checkpoints: none}\nconstraints: [n_layr > 2, import os]\n"
    )
    places = [
        "1:1",
        "2:1",
        "3:8",
        "3:25",
        "4:10",
        "5:20",
        "6:10",
        "7:22",
        "8:1",
        "9:28",
        "10:15",
        "10:27",
    ]
    assert [each.split(": ")[0] for each in found] == places


def test_a_missing_key_is_said_where_it_is_missing(problems):
    assert problems("data: {corpus: python-docs}\n") == [
        "1:1: name is missing",
        "1:1: data.tokenizer is missing",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", " a study is a mapping of keys to values, such as `name: small`"),
        (b"- a\n- b\n", "1:1: a study is a mapping"),
        (b"name: \xff\xfe", "1:7: a byte that is not UTF-8"),
        ("name: ä\n".encode("utf-16"), "1:1: a byte that is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), " the file is too large; allowed: at most 1,000,000 bytes"),
        (b"seeds: [" + b"0," * MAX_NODES + b"0]", f"more than {MAX_NODES:,} values"),
        (b"name: [a, b", "but got '<stream end>'"),
    ],
    ids=lambda content: str(content)[:30],
)
def test_what_is_no_study_is_said_in_a_line(problems, content, said):
    (problem,) = problems(content)
    assert said in problem


def test_a_missing_file_is_named_with_its_neighbor(write, tmp_path):
    write(SMALL)
    with pytest.raises(
        BadInput, match=r"stdy.yaml: No such file or directory; did you mean 'study.yaml'"
    ):
        read_study(tmp_path / "stdy.yaml")
    with pytest.raises(BadInput, match="is no file"):
        read_study(tmp_path)


@pytest.mark.parametrize("other", ["lr", "Peak-Learning-Rate"])
@pytest.mark.parametrize(
    ("line", "override"),
    [
        ("fixed: {$: 1e-3}", ""),
        ("grid: {$: [1e-3, 1e-2]}", ""),
        ("cells: [{}, {$: 1e-2}]", ""),
        ("search: {$: suggested}\nfirst_trial: {$: 2e-3}", ""),
        ("fixed: {}", "$=1e-2"),
        ("search: {$: suggested}", "$=1e-2"),
        ("search: {$: {min: 1e-4, max: 1e-3}}", "search.$.max=1e-2"),
        ("grid: {$: [1e-3, 1e-2]}", "search={$: suggested, dropout: suggested}\ngrid={}"),
        ("search: {$: suggested}", "first_trial.$=2e-3"),
    ],
)
def test_a_hyperparameter_may_have_another_common_name_wherever_it_is_set(
    write, line, override, other
):
    def spec(name):
        overrides = [each for each in override.replace("$", name).split("\n") if each]
        return read_study(write(SMALL + line.replace("$", name)), overrides)

    assert spec(other).as_written() == spec("learning_rate").as_written()


def test_expressions_may_have_other_common_names_but_keep_their_strings(write):
    text = SMALL + (
        "search: {wd: {min: 1e-3, max: 1e-1, when: activation == 'act'},\n"
        "  min_lr: {expr: lr / 10}, lr: suggested, warmup: {expr: num_steps // 10}}\n"
        "constraints: ['lr < 1 and min(wd, lr) < 1']\nseeds: [0, {seed: 1, when: depth == 2}]\n"
    )
    written = read_study(write(text)).as_written()
    assert written["search"]["weight_decay"]["when"] == "activation == 'act'"
    assert written["search"]["min_lr"]["expr"] == "learning_rate / 10"
    assert written["search"]["warmup_iters"]["expr"] == "max_iters // 10"
    assert written["constraints"] == [
        "learning_rate < 1 and min(weight_decay, learning_rate) < 1"
    ]
    assert written["seeds"][1]["when"] == "n_layer == 2"


def test_an_override_fixes_a_hyperparameter_or_sets_a_place(write):
    overrides = [
        "learning_rate=1e-3",
        "n_layer=2",
        "grid.max_iters=[10, 20]",
        "budget.trials_per_cell=8",
        "sampler.n_ei_candidates=9",
        "search.dropout.max=0.2",
        "seeds=[7]",
        "betas=[0.9, 0.99]",
        "pruner=none",
        "constraints=",
    ]
    spec = read_study(write(WHOLE), [*overrides, "--name other"])
    assert (spec.fixed["learning_rate"], spec.fixed["n_layer"], spec.fixed["betas"]) == (
        1e-3,
        2,
        (0.9, 0.99),
    )
    assert "learning_rate" not in spec.search
    assert "max_iters" not in spec.fixed
    assert spec.grid == {"n_embd": [32, 64, 128], "max_iters": [10, 20]}
    assert spec.search["dropout"] == Range(0.0, 0.2, step=0.1)
    assert (spec.budget.trials_per_cell, spec.budget.time) == (8, 5400)
    assert spec.sampler.options == {"n_startup_trials": 3, "n_ei_candidates": 9}
    assert (spec.name, spec.seeds, spec.pruner.type, spec.constraints) == (
        "other",
        [7],
        "none",
        [],
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "learning_rte=3",
            "'learning_rte' is unknown; allowed: .*did you mean 'learning_rate'",
        ),
        ("learning_rate=fast", 'fixed.learning_rate is "fast"; allowed: a number, above 0'),
        ("budgt.time=3", "unknown key \"budgt\".*did you mean 'budget'"),
        ("seeds.0=1", "seeds has no keys to set"),
        ("seed=1", "set by the key seeds"),
        ("max_iters=[", "expected the node content"),
        ("n_head=7", "no cell meets 'n_embd % n_head == 0'"),
    ],
)
def test_a_wrong_override_is_named_in_place_of_a_line(problems, override, said):
    (problem,) = problems(SMALL + "seeds: [0]\n", override)
    assert problem.startswith(f"-o {override}: ")
    assert re.search(said, problem)


def test_a_wrong_name_from_the_command_line_is_named(problems):
    assert problems(SMALL, "--name a b") == [
        '--name a b: name is "a b"; allowed: a letter or digit, then letters, digits, . _ and -, at most 100'
    ]


def test_an_alias_bomb_is_refused_at_once(problems):
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "1:5: " not in problems("a0: &a0 [x]\n" + "\n".join(layers))[0]
    assert "the alias *a0 is not supported" in problems("a0: &a0 [x]\n" + "\n".join(layers))[0]
