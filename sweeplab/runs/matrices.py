"""Attention on matrices given by the user, step by step as in textbooks; no run is needed.

Legend: T queries, S keys, D width of queries and keys, W width of values, C width of inputs.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.study.file.document import file_text, parse
from sweeplab.study.problems import Problems, SourceMap, shown

# The matrices that may be given, each with its other names.
NAMES: dict[str, tuple[str, ...]] = {
    "inputs": ("x",),
    "queries": ("query", "q"),
    "keys": ("key", "k"),
    "values": ("value", "v"),
    "w_queries": ("w_query", "w_q", "wq"),
    "w_keys": ("w_key", "w_k", "wk"),
    "w_values": ("w_value", "w_v", "wv"),
}
PARTS = ("queries", "keys", "values")
ALLOWED = "{queries: [[1, 0], [0, 1]], keys: …, values: …}, or inputs with w_queries, w_keys, w_values, or one matrix"
MOST_BYTES, MOST_ROWS = 100_000, 64

Matrix = list[list[float]]


def read_matrices(written: str) -> dict[str, Matrix]:
    """Read matrices from a file (.yaml, .json, .csv) or a text: return them by name; a matrix without one is `inputs`.

    Raises:
        BadInput: the file cannot be read, or holds no such matrices; says where.
    """
    file = Path(written)
    is_file = file.suffix in (".yaml", ".yml", ".json", ".csv")
    problems = Problems(SourceMap(file if is_file else None))
    text = file_text(file, MOST_BYTES) if is_file else written
    found: Any
    if file.suffix == ".csv":
        rows = [row for row in csv.reader(text.splitlines()) if row]
        found = [[_number(each) for each in row] for row in rows]
    else:
        found = parse(text, problems)
    if problems.found:
        raise BadInput(*problems.found)
    known = {other.lower(): name for name, others in NAMES.items() for other in (name, *others)}
    matrices: dict[str, Matrix] = {}
    for name, value in (found if isinstance(found, dict) else {"inputs": found}).items():
        if str(name).lower() not in known:
            near = nearest(str(name), known)
            problems.add((name,), f"there is no matrix {shown(name)}", ", ".join(NAMES), known.get(near, ""))
        elif not _is_matrix(value):
            allowed = f"1 to {MOST_ROWS} rows of as many numbers, all of one length, such as [[1, 0], [0, 1]]"
            problems.add((name,), f"{name} is {shown(value)}", allowed)
        else:
            matrices[known[str(name).lower()]] = [[float(each) for each in row] for row in value]
    if problems.found:
        raise BadInput(*problems.found)
    return matrices


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _is_matrix(value: Any) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_ROWS:
        return False
    if not all(isinstance(row, list) and 0 < len(row) == len(value[0]) <= MOST_ROWS for row in value):
        return False
    cells = [each for row in value for each in row]
    return all(
        isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e100 for each in cells
    )


def attention_of(
    given: dict[str, Matrix], causal: bool = False, scale: float | None = None
) -> dict[str, Matrix]:
    """Return the steps of softmax(Q K^T / sqrt(D)) V in float64, by name (Vaswani et al., 2017).

    Queries, keys and values that are not given are the inputs [T, C], times their weights if there are any. If
    `causal`, a query sees the keys up to its own position; the last query is at the last key.

    Raises:
        BadInput: a matrix is missing, or sizes do not match; says which.
    """
    import torch

    from sweeplab.model.attention.base import distance_matrix

    held = {name: torch.tensor(matrix, dtype=torch.float64) for name, matrix in given.items()}
    steps: dict[str, Any] = {}
    for part in PARTS:
        weights = held.get(f"w_{part}")
        if (found := held.get(part, held.get("inputs"))) is None:
            raise BadInput(Problem(f"there are neither {part} nor inputs", ALLOWED))
        if part not in held and weights is not None:
            _check("inputs", found, f"w_{part}", weights, columns=found.shape[1], rows=weights.shape[0])
            found = found @ weights
        steps[part] = found
    q, k, v = steps.values()
    _check("queries", q, "keys", k, columns=q.shape[1], rows=k.shape[1])
    _check("keys", k, "values", v, columns=k.shape[0], rows=v.shape[0])
    if causal and len(q) > len(k):
        raise BadInput(
            Problem(f"causal attention of {len(q)} queries to {len(k)} keys", "at most one query per key")
        )
    products = q @ k.T
    scores = products / math.sqrt(q.shape[1]) if scale is None else products * scale
    if causal:
        scores = scores.masked_fill(distance_matrix(q[None, None], k[None, None]) < 0, -math.inf)
    weights = scores.softmax(dim=-1)
    steps |= {"products": products, "scores": scores, "weights": weights, "output": weights @ v}
    return {name: step.tolist() for name, step in steps.items()}


def _check(name: str, one: Any, other_name: str, other: Any, columns: int, rows: int) -> None:
    if columns != rows:
        sizes = f"{name} are {len(one)} x {one.shape[1]} and {other_name} {len(other)} x {other.shape[1]}"
        raise BadInput(
            Problem(sizes, "queries T x D, keys S x D, values S x W; inputs T x C, their weights C x D")
        )
