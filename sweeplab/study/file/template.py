"""The study file that a person starts from: every hyperparameter with its value and what it means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.formatting import decimal
from sweeplab.hyperparameters import CATEGORIES, MINIMAL, TABLE, Hyperparameter

SEARCHED = ("learning_rate", "weight_decay", "dropout", "warmup_iters")
HEAD_DIM = 32

_PLAIN_TEXT = re.compile(r"(?!(?:true|false|null|yes|no|on|off)$)[A-Za-z][\w./-]*", re.IGNORECASE | re.ASCII)

_HEAD = """\
# Check with `sweeplab study plan`, train with `sweeplab study run`; `sweeplab hyperparameters` has them all.
name: {name}

data:
  corpus: python-docs  # {corpora}; text and pairs take a path
  tokenizer: char  # {tokenizers}
"""
_TAIL = """\

# grid: {{n_layer: [1, 2, 4]}}  # every combination is a cell with its own trials; take n_layer out of fixed
# cells: [{{}}, {{norm: rmsnorm}}, {{positions: rotary}}]  # or each by what it changes of fixed

objective: {{metric: val_loss, goal: minimize}}  # nats/token; the best evaluation, or with at: final the last
budget: {{trials_per_cell: 20}}  # a total: running again adds nothing; time: 30m and flops: 1e15 end it too
sampler: tpe  # {samplers}
pruner: {{type: asha, min_iters: {first_evaluation}, factor: 3}}  # {pruners}
seeds: {seeds}  # a trial is trained once a seed, and its value is their mean
engine: {{type: local, workers: auto}}  # worker processes; auto: one a GPU, or one a core
track: {{checkpoints: best}}  # best | last | none
"""


def study_text(
    name: str,
    minimal: bool = False,
    search: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Write a commented study file of one cell, valid as it stands.

    The file has every hyperparameter, or with `minimal` the eight that matter most and those of `values` and
    `search`. `values` stand in place of the table's defaults. The names in `search` are tuned in the table's
    suggested range; None tunes what is usual.

    Raises:
        BadInput: a name to search is unknown or has no suggested range, or n_head does not divide n_embd.
    """
    from sweeplab.data.corpora import CORPORA
    from sweeplab.data.tokenizers import TOKENIZERS
    from sweeplab.study.algorithms import PRUNERS, SAMPLERS

    given = {} if values is None else dict(values)
    if search is None:
        search = [row for row in SEARCHED if not minimal or row in MINIMAL]
    _check(search)
    effective = _consistent(given, search)
    derived = _derived(search)
    changed = {name for name, value in effective.items() if value != TABLE[name].default}
    kept = {*MINIMAL, *given, *search, *changed} if minimal else set(TABLE)
    rows = [row for row in TABLE.values() if row.name in kept]
    tuned = [row for row in rows if row.name in search or row.name in derived]
    fixed = [row for row in rows if row not in tuned and row.name != "seed"]
    return "".join(
        (
            _HEAD.format(name=scalar(name), corpora=" | ".join(CORPORA), tokenizers=" | ".join(TOKENIZERS)),
            *_fixed(fixed, effective),
            *_searched(tuned, derived, given),
            _TAIL.format(
                samplers=" | ".join(SAMPLERS),
                pruners=" | ".join(PRUNERS),
                first_evaluation=effective["eval_interval"],
                seeds=scalar((effective["seed"],)),
            ),
        )
    )


def scalar(value: Any) -> str:
    """Write a value as YAML: 3e-4, true, null, [0.9, 0.95], cosine, "a text"."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar(each) for each in value)}]"
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, str) and not _PLAIN_TEXT.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    return str(value)


def range_in_words(suggested: Mapping[str, Any] | Iterable[Any] | None) -> str:
    """Say a suggested range as a person would: "1e-4 to 1e-2, log", "gelu or relu"."""
    if suggested is None:
        return ""
    if not isinstance(suggested, Mapping):
        *most, last = (scalar(each) for each in suggested)
        return f"{', '.join(most)} or {last}"
    text = f"{scalar(suggested['min'])} to {scalar(suggested['max'])}"
    if "divides" in suggested:
        text = f"those from {text} that divide {suggested['divides']}"
    if suggested.get("log"):
        text += ", log"
    if "step" in suggested:
        text += f", step {scalar(suggested['step'])}"
    if "when" in suggested:
        text += f", when {suggested['when']}"
    return text


def _check(search: Sequence[str]) -> None:
    searchable = [row.name for row in TABLE.values() if row.suggested is not None]
    problems = []
    for name in search:
        if name in TABLE and name not in searchable:
            problems.append(Problem(f"no range is suggested for {name!r}", ", ".join(searchable)))
        elif name not in TABLE:
            near = nearest(name, searchable)
            allowed = "" if near else ", ".join(searchable)
            problems.append(Problem(f"unknown hyperparameter {name!r} to search", allowed, near))
    if problems:
        raise BadInput(*problems)


def _consistent(given: Mapping[str, Any], search: Sequence[str]) -> dict[str, Any]:
    """Return every hyperparameter, with defaults that go with what is given."""
    values = {row.name: given.get(row.name, row.default) for row in TABLE.values()}
    n_embd, n_head = values["n_embd"], values["n_head"]
    if n_embd % n_head and not {"n_embd", "n_head"} & set(search):
        divisors = [each for each in range(1, n_embd + 1) if n_embd % each == 0]
        if {"n_embd", "n_head"} <= set(given):
            fitting = ", ".join(str(each) for each in divisors)
            raise BadInput(Problem(f"n_head {n_head} does not divide n_embd {n_embd}", fitting))
        if "n_head" in given:
            values["n_embd"] = max(n_embd // n_head, 1) * n_head
        else:
            values["n_head"] = max(each for each in divisors if each <= n_head)
    if "warmup_iters" not in given and values["warmup_iters"] >= values["max_iters"]:
        values["warmup_iters"] = values["max_iters"] // 10
    return values


def _derived(search: Sequence[str]) -> dict[str, str]:
    """Return the expressions of what must follow a searched hyperparameter: heads keep their width."""
    return {"n_head": f"n_embd // {HEAD_DIM}"} if "n_embd" in search and "n_head" not in search else {}


def _fixed(rows: Sequence[Hyperparameter], values: Mapping[str, Any]) -> list[str]:
    parts = ["\nfixed:\n"]
    for category, title in CATEGORIES.items():
        members = [row for row in rows if row.category == category]
        if members:
            parts.append(f"  # {title}\n")
            lines = [(f"{row.name}: {scalar(values[row.name])}", _meaning(row)) for row in members]
            parts.append(_aligned(lines))
    return parts


def _searched(
    rows: Sequence[Hyperparameter], derived: Mapping[str, str], given: Mapping[str, Any]
) -> list[str]:
    if not rows:
        return []
    lines = []
    for row in rows:
        expression = derived.get(row.name)
        entry = f"{{expr: {expression}}}" if expression else "suggested"
        words = "derived" if expression else range_in_words(row.suggested)
        said = f" (given: {scalar(given[row.name])})" if row.name in given else ""
        lines.append((f"{row.name}: {entry}", f"{words}{said}; {_meaning(row)}"))
    return ["\nsearch:\n", _aligned(lines)]


def _meaning(row: Hyperparameter) -> str:
    unit = f" ({row.unit})" if row.unit and row.unit not in row.meaning.lower() else ""
    choices = f": {' | '.join(row.choices)}" if len(row.choices) > 1 else ""
    automatic = "; auto: the best of this machine" if row.category == "precision" else ""
    return f"{row.meaning}{unit}{choices}{automatic}"


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(text) for text, _ in lines)
    return "".join(f"  {text:<{width}}  # {comment}\n" for text, comment in lines)
