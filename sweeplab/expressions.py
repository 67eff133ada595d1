"""Arithmetic in a study file: `expr`, `when` and constraints."""

from __future__ import annotations

import ast
import math
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simpleeval import DEFAULT_OPERATORS, InvalidExpression, SimpleEval

from sweeplab.formatting import several
from sweeplab.hyperparameters import canonical

MAX_LENGTH = 500

COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)


# The names in an expression; a string counts as a whole, so that no name is found inside it.
_NAME = re.compile(r"""'[^']*'|"[^"]*"|\b[A-Za-z_]\w*""")


def _round(number: float, digits: int | None = None) -> float | int:
    return round(float(number), digits)  # for an int, round(3, -10**9) would compute 10**10**9


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (min, max, abs, round, int, float)
}
FUNCTIONS |= {
    name: getattr(math, name) for name in ("sqrt", "log", "log2", "exp", "floor", "ceil")
}
FUNCTIONS["round"] = _round
ALLOWED = f"names, numbers, + - * / // % **, comparisons, and, or, not, {' '.join(FUNCTIONS)}"


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse strings and tuples, for which Python's operators repeat and format instead of computing."""

    def checked(*operands: Any) -> Any:
        if not all(isinstance(each, int | float) for each in operands):
            raise TypeError(
                f"arithmetic needs numbers, not {' and '.join(map(repr, operands))}"
            )
        return function(*operands)

    return checked


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {}
_OPERATORS |= {kind: _of_numbers(DEFAULT_OPERATORS[kind]) for kind in ARITHMETIC}
_OPERATORS[ast.Pow] = _of_numbers(math.pow)  # a float: whole numbers would grow without end
_OPERATORS |= {kind: DEFAULT_OPERATORS[kind] for kind in (*COMPARISONS, ast.Not)}
_NODES = (
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Name,
    ast.Load,
    ast.And,
    ast.Or,
    *_OPERATORS,
)


class _Evaluator(threading.local, SimpleEval):  # type: ignore[misc]
    """An evaluator per thread, because creating one takes longer than evaluating most expressions."""


_evaluator = _Evaluator(operators=_OPERATORS, functions=FUNCTIONS)


@dataclass(frozen=True)
class Expression:
    """An arithmetic expression over names.

    Raises:
        ValueError: `text` is not arithmetic; says which part of it.
    """

    text: str

    def __post_init__(self) -> None:
        _names(self.text)

    @property
    def names(self) -> frozenset[str]:
        """Return the names in the expression."""
        return _names(self.text)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Evaluate the expression with these values of its names.

        Raises:
            ValueError: it cannot be evaluated (a division by zero, a comparison of a number with null …).
        """
        _evaluator.names = values
        try:
            return _evaluator.eval(self.text, previously_parsed=_parse(self.text))
        except (
            InvalidExpression,
            ArithmeticError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise ValueError(f"{self.text!r} cannot be evaluated: {error}") from error


def in_table_names(text: str) -> str:
    """Return an expression's text with the table's names of hyperparameters: `learning_rate < 1` for `lr < 1`."""
    return _NAME.sub(lambda match: canonical(match[0]), text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        length = several(len(text), "character")
        raise ValueError(f"an expression of {length} is too long (at most {MAX_LENGTH})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not an expression") from error


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    """Return the names in an expression; cached, because every cell creates its expressions anew."""
    nodes = list(ast.walk(_parse(text)))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    compared = set[ast.AST]()
    for node in nodes:
        if isinstance(node, ast.Compare):
            compared |= {node.left, *node.comparators}
        if not _is_arithmetic(node, node in compared):
            source = ast.get_source_segment(text.strip(), node) or type(node).__name__
            raise ValueError(f"{source!r} is not arithmetic")
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and node not in called
    )


def _is_arithmetic(node: ast.AST, is_compared: bool) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    if isinstance(node, ast.Constant):
        # Strings and null cannot be computed with, but values can be compared with them.
        if node.value is None or isinstance(node.value, str):
            return is_compared
        return isinstance(node.value, bool | int | float)
    return isinstance(node, _NODES)
