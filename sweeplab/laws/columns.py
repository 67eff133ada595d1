"""A table's columns: which one has which role, in which unit, the numbers in its cells, and how they count.

The unit of a count is the first of these that is given:
  COLUMN*1e9   a factor from the user; *1 at the end, as in COLUMN*1, confirms the numbers, so that no check asks
  the cell's   1.3B is 1.3e9 in any column
  the name's   a unit as the last word: params_M, "tokens (B)", D_tokens_billions, flops_E, PF_days

Exponents depend on what counts as N, C and the loss: each choice (`Conventions`) is recorded with the points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.expressions import ALLOWED, Expression
from sweeplab.formatting import several

if TYPE_CHECKING:
    import pandas as pd


# The choices with their meaning; the first is the default. `rows` is for files: a study's point is its best trial.
CHOICES: dict[str, dict[str, str]] = {
    "params": {
        "total": "all parameters, tied ones once",
        "active": "parameters active for a token: all but the experts it is not routed to",
        "non-embedding": "parameters without the embeddings and without a head tied to them",
        "with-head": "parameters without the embeddings, with the head's matrix, tied or not",
    },
    "flops": {"counted": "matrix products and attention, the head's too", "6nd": "6ND"},
    "loss": {"nats": "nats per token", "bits-per-byte": "bits per byte"},
    "at": {"best": "the lowest evaluation of a run", "final": "the last evaluation of a run"},
    "rows": {"best": "the best row of each point", "mean": "the mean of its rows", "all": "every row"},
}


@dataclass(frozen=True)
class Conventions:
    """One choice of each of CHOICES; empty means the default."""

    params: str = ""
    flops: str = ""
    loss: str = ""
    at: str = ""
    rows: str = ""

    def chosen(self, name: str) -> str:
        """Return a choice, or its default."""
        return str(getattr(self, name)) or next(iter(CHOICES[name]))


def parse_conventions(text: str) -> Conventions:
    """Return the conventions of "params=non-embedding,flops=6nd,…".

    Raises:
        BadInput: an unknown convention or choice, or a convention named twice.
    """
    chosen: dict[str, str] = {}
    problems = []
    for _, name, choice in pairs_of(text):
        choices = CHOICES.get(name, {})
        if not choices:
            problems.append(Problem(f"--count has no {name!r}", ", ".join(CHOICES), nearest(name, CHOICES)))
        elif name in chosen:
            problems.append(Problem(f"--count names {name!r} twice"))
        elif choice not in choices:
            problems.append(Problem(f"--count {name}={choice}", ", ".join(choices), nearest(choice, choices)))
        chosen[name] = choice
    if problems:
        raise BadInput(*problems)
    return Conventions(**chosen)


def check_of_a_file(conventions: Conventions, source: str, columns: Mapping[str, str]) -> None:
    """Refuse conventions that a file's columns cannot be converted to; what params count and a unit may be said.

    Raises:
        BadInput: one line per convention that only a study's runs can follow.
    """
    problems = []
    if conventions.at:
        what = f"--count at={conventions.at} needs a study's runs"
        problems.append(f"{source}: {what}; in a file, --columns loss=COLUMN names the column that counts so")
    if conventions.flops == "counted" and "flops" not in columns:
        problems.append(f"{source}: --count flops=counted needs a column; --columns flops=COLUMN names it")
    if problems:
        raise BadInput(*problems)


Array = NDArray[np.float64]

ROLES = {
    "params": "parameters of the model",
    "tokens": "tokens trained on",
    "flops": "floating-point operations of the training",
    "loss": "the loss reached",
    "group": "what may share an error: a run, a size, a curve",
    "n_layer": "layers of the model",
    "n_embd": "width of the model",
}
SHAPE = ("n_layer", "n_embd")
NUMBERS = ("params", "tokens", "flops", "loss")
COUNTS = ("params", "tokens", "flops")
# Other names of a role's column, the most certain first; single letters are capitals: d is a width and l a depth.
OTHER_NAMES = {
    "params": "N n_params num_params n_parameters num_parameters parameters model_params total_params model_size",
    "tokens": "D train_tokens n_tokens num_tokens training_tokens total_tokens tokens_seen dataset_size",
    "flops": "C train_flops n_flops training_flops total_flops flop training_flop train_flop compute training_compute",
    "loss": "L val_loss valid_loss validation_loss best_val_loss final_val_loss eval_loss test_loss final_loss",
    "n_layer": "n_layers num_layers num_hidden_layers layers depth",
    "n_embd": "d_model n_embed embed_dim hidden_size model_width width",
}
# A column of tokens per parameter, which gives the tokens where nothing else does.
_PER_PARAM = re.compile(r"d/n|(tokens|d)_(per|over)_(param|parameter|n)s?|tokens_?/_?(param|parameter|n)s?")
# Columns with how often a run read its text, or with the tokens of its text.
_PASSES = ("epochs", "n_epochs", "num_epochs", "passes")
_TEXTS = ("unique_tokens", "n_unique_tokens", "num_unique_tokens", "corpus_tokens", "dataset_tokens")
# Roles that --columns can derive from FLOPs and another role: the name of the formula, and the other role.
FOLLOWING = {"tokens": ("C/6N", "params"), "params": ("C/6D", "tokens")}
# Names of results of a run, which are not settings of it.
_MEASURED = re.compile(
    "loss|ppl|perplexity|acc|accuracy|bpb|bits|error|err|scores?|nll|entropy|reward|time|seconds|hours|days|date|id|index|"
    "unnamed"
)

LETTERS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}
_LETTERS_OF_NAMES = LETTERS | {"m": 1e6, "b": 1e9}  # other small letters mean other things
_LARGE = ("P", "E", "Z")  # of FLOPs only: N_E and D_P are no units
_WORDS = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_PREFIXES = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12, "peta": 1e15, "exa": 1e18, "zetta": 1e21}
_PREFIXES |= {letter.lower(): size for letter, size in LETTERS.items()}
_PF_DAY = 1e15 * 86_400
# The last word of a name, after a space, a sign or a bracket; or a letter right behind the role's own name.
_LAST_WORD = re.compile(r"(?P<stem>.*[^\s_.(\[-])[\s_.(\[-]+(?P<unit>[A-Za-z]+|1e\d+)[)\]]?\s*")
_LAST_LETTER = re.compile(rf"(?P<stem>(?i:params|parameters|tokens|flops))(?P<unit>[{''.join(LETTERS)}])")
_PF_DAYS = re.compile(r"(?P<stem>.*?)[\s_(\[-]*(pf|petaflops?)([\s_/-]*s)?[\s_-]*days?[)\]]?", re.IGNORECASE)
_FLOPS = re.compile(r"(?:(?P<stem>.*?)[\s_.(\[-]+)?(?P<unit>[a-z]+?)flops?[)\]]?", re.IGNORECASE)

_CELL = re.compile(
    rf"([-+]?(?:\d{{1,3}}(?:,\d{{3}})+|[\d_]*)(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s*([{''.join(LETTERS)}]))?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_NO_NUMBER = "not a number"
_PLAIN_WORD = re.compile(r"[A-Za-z][\w.+-]{0,40}")
_LONGEST_SHOWN = 60  # characters of a cell
_NOTHING = {"", "-", "nan", "none", "null", "na", "n/a", "inf", "-inf", "+inf"}
# A run that gave no number, as people write it into its cell.
_NOTHING |= {"diverged", "diverge", "oom", "failed", "fail", "crashed"}
_NOTHING |= {"killed", "timeout", "error", "tbd", "?"}


@dataclass(frozen=True)
class Column:
    """A role's numbers, [n], NaN if missing; `words` describe it, `confirmed` is what the user writes to confirm it."""

    name: str
    words: str
    values: Array
    confirmed: str
    is_confirmed: bool


def pairs_of(text: str) -> list[tuple[str, str, str]]:
    """Return each pair of "params=N,tokens=D", its name and its value: [("params=N", "params", "N"), …]."""
    parts = [(pair.strip(), *pair.partition("=")) for pair in text.split(",")]
    return [(pair, name.strip(), value.strip()) for pair, name, _, value in parts]


def parse_columns(text: str) -> dict[str, str]:
    """Return {"params": "N", …} of "params=N,tokens=D*1e9,…"; a factor may follow the column's name.

    Raises:
        BadInput: a part that is not a pair, an unknown role, a role named twice.
    """
    columns: dict[str, str] = {}
    problems = []
    for pair, role, column in pairs_of(text):
        if not column:
            problems.append(Problem(f"--columns {pair!r} is not ROLE=COLUMN", ", ".join(ROLES)))
        elif role not in ROLES:
            problems.append(Problem(f"--columns has no {role!r}", ", ".join(ROLES), nearest(role, ROLES)))
        elif role in columns:
            problems.append(Problem(f"--columns names {role!r} twice"))
        columns[role] = column
    if problems:
        raise BadInput(*problems)
    return columns


def own_columns(known: Sequence[str]) -> dict[str, str]:
    """Return the columns named like a role, with or without a unit: {"params": "Params_M", …}."""
    columns: dict[str, str] = {}
    for name in known:
        for role in ROLES:
            alike = role in (name.lower(), _called(_unit(name, role)[0]))
            if name == role or (alike and role not in columns):
                columns[role] = name
    return columns


def guessed_columns(known: Sequence[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return the columns with another name of a role, except those that are taken."""
    columns: dict[str, str] = {}
    for role, others in OTHER_NAMES.items():
        called = {_called(_unit(name, role)[0]): name for name in reversed(known) if name not in taken}
        columns |= next(({role: called[other]} for other in others.split() if other in called), {})
    ratio = next((name for name in known if name not in taken and _is_per_param(name)), "")
    if ratio:
        columns.setdefault("tokens", ratio)
    return columns


def count_columns(
    frame: pd.DataFrame, named: Mapping[str, str] | None = None, roles: Sequence[str] = COUNTS
) -> dict[str, str]:
    """Return the columns of a run's sizes that a table has, by role: those `named`, or by their names."""
    known = [str(name) for name in frame]
    columns = guessed_columns(known) | own_columns(known) | dict(named or {})
    return {role: columns[role] for role in roles if role in columns}


def passes_of(frame: pd.DataFrame, tokens: Array | None) -> tuple[Array | None, str]:
    """Return how often each row's run read its text, [n], and the column that says it; None if none does.

    It is `tokens` over those of the text if the column has these.
    """
    for name in filter(tells_passes, map(str, frame)):
        column = coerced(frame[name])
        if _called(name) in _PASSES:
            return column, name
        if tokens is not None:
            return np.asarray(tokens / (_unit(name, "tokens")[1] * column)), name
    return None, ""


def tells_passes(name: str) -> bool:
    """Return whether a column, by its name, says how often a run read its text, or has the tokens of that text."""
    return _called(name) in _PASSES or _called(_unit(name, "tokens")[0]) in _TEXTS


def first_of(names: Iterable[Any], most: int) -> str:
    """List the first names; an ellipsis stands for more."""
    texts = list(map(str, names))
    return ", ".join(texts[:most]) + (" …" if len(texts) > most else "")


def _called(name: str) -> str:
    """A name as OTHER_NAMES has it: `val/loss`, `Val Loss` and W&B's `summary/val_loss` are val_loss."""
    words = re.sub(r"[\s.\-/]+", "_", re.sub(r"^(summary|config)[/.]_?", "", name.strip()))
    if len(words) == 1:
        return words
    return words.lower()


def _is_per_param(name: str) -> bool:
    return bool(_PER_PARAM.fullmatch(re.sub(r"[\s.\-]+", "_", name.strip().lower())))


def is_measured(name: str) -> bool:
    """Return whether a column, by its name, was measured on a run or only labels runs."""
    words = re.split(r"[^a-z]+", name.lower())
    return any(_MEASURED.fullmatch(word) for word in words) or "loss" in name.lower()


def read_columns(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> dict[str, Column]:
    """Return the numbers of each role, and the texts of `group`'s column under its name alone.

    Raises:
        BadInput: every column that is missing, has two roles, or has a cell that is not a positive number.
    """
    known = [str(name) for name in frame]
    problems: list[Problem] = []
    read: dict[str, Column] = {}
    following = {role: of for role, (name, of) in FOLLOWING.items() if columns.get(role) == name not in known}
    for role, asked in columns.items():
        if role in following:
            continue
        name, factor, wrong = named_column(asked, known)
        others = [other for other in read if read[other].name == name]
        if wrong:
            problems.append(Problem(f"{source}: {wrong}", ", ".join(known), nearest(name, known)))
        elif role != "group" and others:
            problems.append(Problem(f"{source}: column {name!r} is both {others[0]} and {role}"))
        elif role != "group":
            unit, words, confirmed = 1.0, f"column {asked}", f"{role}={asked}*1"
            if not factor:
                unit = _unit(name, role)[1]
            if unit != 1:
                words, confirmed = f"column {name}, times {unit:g}", f"{role}={name}*{unit:g}*1"
            values, bad = _numbers(frame, name, unit)
            read[role] = Column(name, words, values * (factor or 1.0), confirmed, _is_confirmed(asked, known))
            problems += [Problem(f"{source}: column {name!r} ({role}): {each}") for each in bad]
    for role, other in following.items():
        lacks = [needed for needed in ("flops", other) if needed not in read]
        if lacks:
            what = f"{source}: {role}={columns[role]} needs {' and '.join(lacks)}; name it with --columns"
            problems.append(Problem(what, ", ".join(known)))
        else:
            values = read["flops"].values / (6 * read[other].values)
            read[role] = Column(columns[role], columns[role], values, f"{role}={columns[role]}", True)
    tokens = read.get("tokens")
    if tokens and _is_per_param(tokens.name):
        if "params" in read:
            words, values = f"{tokens.words} times params", tokens.values * read["params"].values
            read["tokens"] = replace(tokens, words=words, values=values)
        else:
            what = f"{source}: column {tokens.name!r} (tokens per parameter) needs params"
            problems.append(Problem(f"{what}; name it with --columns", ", ".join(known)))
    if problems:
        raise BadInput(*problems)
    return read


def named_column(asked: str, known: Sequence[str]) -> tuple[str, float | None, str]:
    """Return a column's name, its factor if one is given, and an error text, or an empty one."""
    factor = None
    if _is_confirmed(asked, known):
        asked, factor = asked.rpartition("*")[0].strip(), 1.0
    name, star, text = asked.rpartition("*")
    if asked in known or not star:
        name = asked
    else:
        name, factor = name.strip(), as_number(text)
        if not 0 < factor < np.inf:
            return name, None, f"{text!r} is no factor for column {name!r}"
    if name not in known:
        return name, factor, f"no column {name!r}"
    return name, factor, ""


_GROUPED = re.compile(r"[-+]?\d{1,3}(_\d{3})+(\.\d+)?")


def as_number(text: str) -> float:
    """Return the number that a text is; NaN if it is none."""
    if "_" in text and not _GROUPED.fullmatch(text.strip()):  # such as 1_0e-4, a number for Python alone
        return np.nan
    try:
        return float(text)
    except ValueError:
        return np.nan


def _is_confirmed(asked: str, known: Sequence[str]) -> bool:
    return asked not in known and asked.rpartition("*")[2].strip() == "1" and "*" in asked


def _unit(name: str, role: str) -> tuple[str, float]:
    """A column's name without its unit, and the unit: 1 if the name has none."""
    # The patterns look at every pair of places in a name.
    if role not in COUNTS or len(name) > _LONGEST_SHOWN:
        return name, 1.0
    if role == "flops":
        days, flops = _PF_DAYS.fullmatch(name), _FLOPS.fullmatch(name)
        if days:
            return days["stem"] or role, _PF_DAY
        if flops and flops["unit"].lower() in _PREFIXES:
            return flops["stem"] or role, _PREFIXES[flops["unit"].lower()]
        if flops:
            return name, 1.0
    match = _LAST_LETTER.fullmatch(name) or _LAST_WORD.fullmatch(name)
    if not match or (match["unit"] in _LARGE and role != "flops"):
        return name, 1.0
    unit = match["unit"]
    if unit[0] == "1":
        return match["stem"], float(unit)
    size = _LETTERS_OF_NAMES.get(unit) or _WORDS.get(unit.lower().removesuffix("s"))
    if not size:
        return name, 1.0
    return match["stem"], size


def numbers(frame: pd.DataFrame, name: str) -> Array:
    """Return a column's numbers, [n]; true is 1, missing cells or a missing column are NaN."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    return np.asarray(frame[name].astype("Float64").to_numpy(float, na_value=np.nan), np.float64)


def coerced(column: pd.Series[Any]) -> Array:
    """Return a column's numbers, [n]; cells that are none are NaN."""
    import pandas as pd

    return np.asarray(pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan), np.float64)


def _numbers(frame: pd.DataFrame, name: str, unit: float) -> tuple[Array, list[str]]:
    """A column's numbers, NaN where missing, and its errors: one text for each kind."""
    import pandas as pd

    column, bad = frame[name], list[str]()
    word = str(frame.index.name or "row")
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        values = numbers(frame, name) * unit
    else:
        read = {text: _number(text, unit) for text in column.dropna().astype(str).unique()}
        texts = column.astype(str).where(column.notna(), "")
        values = np.array([read.get(text, np.nan) for text in texts], float)
        kinds: dict[str, list[str]] = {}
        for text in (text for text, number in read.items() if number is None):
            kinds.setdefault(_fault(text), []).append(text)
        for fault in sorted(kinds):
            bad += _first(texts[texts.isin(kinds[fault])], word, fault)
            text = kinds[fault][0]
            if fault == _NO_NUMBER and _PLAIN_WORD.fullmatch(text) and column.dtype != bool:
                bad[-1] += f"; --where \"{_word(name)} != '{text}'\" leaves it out"
    return values, bad + _first(column[values <= 0].astype(str), word, "not positive")


def _number(text: str, unit: float) -> float | None:
    """The number in a cell: 1.3B is 1.3e9, an empty cell NaN, any other text None."""
    if text.strip().lower() in _NOTHING:
        return np.nan
    match = _CELL.fullmatch(text.strip())
    number = as_number(match[1].replace(",", "")) if match else np.nan
    if not match or np.isnan(number):
        return None
    return number * LETTERS.get(match[2], unit)


def _fault(text: str) -> str:
    if text.rstrip().endswith("%"):
        return "a percentage; write the number itself"
    if _DECIMAL_COMMA.fullmatch(text.strip()):
        return "not a number; write a decimal point"
    return _NO_NUMBER


def _first(cells: pd.Series[Any], word: str, what: str) -> list[str]:
    if cells.empty:
        return []
    text, more = str(cells.iloc[0]), ""
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}…"
    if len(cells) > 1:
        more = f" and {len(cells) - 1} more"
    return [f"{text!r} in {word} {cells.index[0]}{more} is {what}"]


@dataclass(frozen=True)
class Plausible:
    """The plausible range of a role's numbers, questions to the user, and factors between likely units."""

    least: float
    most: float
    too_small: str
    too_large: str
    steps: tuple[float, ...]


_COUNT = (1e6, 1e9, 1e12)
_FLOPS_STEPS = (1e9, 1e12, 1e15, 1e18)
_UNIT, _PERPLEXITY = "is it in another unit?", "is it a perplexity, or in percent?"
_SHORT = "no training is so short"
PLAUSIBLE = {
    "params": Plausible(30, 1e15, f"no model is so small; {_UNIT}", f"no model is so large; {_UNIT}", _COUNT),
    "tokens": Plausible(300, 1e17, f"{_SHORT}; {_UNIT}", f"no text is so long; {_UNIT}", _COUNT),
    "flops": Plausible(1e5, 1e31, f"{_SHORT}; {_UNIT}", f"no training is so long; {_UNIT}", _FLOPS_STEPS),
    # Not its largest: a law may start far above the 13.9 nats of a uniform guess among 2^20 tokens.
    "loss": Plausible(1e-6, 20, _UNIT, f"no vocabulary gives so much; {_PERPLEXITY}", (100.0,)),
}
FEWEST_PER_PARAM, MOST_PER_PARAM = 0.1, 1e4  # tokens per parameter of the middle row, usually about 20
_GAP = 0.4  # a gap in the values of this share of a step, in logs, may part two units
_NEAR = 3.0  # how far outside of the other rows' range the shifted ones may end
_FLOPS_OFF = 1e3  # C / (6 N D): attention, embeddings and experts account for less


def check_plausible(columns: Mapping[str, Column], keep: NDArray[np.bool_], source: str) -> None:
    """Ask about implausible numbers in the rows of `keep`, [n]."""
    asked_about = {role: column.values[keep] for role, column in columns.items() if not column.is_confirmed}

    def of_each(question: Callable[[Array, str], str]) -> Iterator[str]:
        for role, values in asked_about.items():
            words, column = question(values, role), columns[role]
            if words:
                of = f"column {column.name!r} ({role})"
                yield f"{of}: {words} If this is right, write {column.confirmed} in --columns"

    # One kind of question at a time: an error in one column causes the questions that follow.
    for questions in (of_each(_mixed), _swapped(asked_about), of_each(_unlikely), _unlike_6nd(asked_about)):
        asked = [f"{source}: {question}" for question in questions]
        if asked:
            raise BadInput(*asked)


def _mixed(values: Array, role: str) -> str:
    """Ask about rows in another unit: they are far from the other rows, but among them after a change of unit."""
    logs = np.unique(np.log(values))
    if len(logs) < 2:
        return ""
    at = int(np.argmax(np.diff(logs)))
    small, large = logs[: at + 1], logs[at + 1 :]
    low, high = large[0] - np.log(_NEAR), large[-1] + np.log(_NEAR)
    fitting = [
        f"{step:.0e}"
        for step in PLAUSIBLE[role].steps
        if large[0] - small[-1] >= _GAP * np.log(step)
        and small[-1] + np.log(step) >= low
        and small[0] + np.log(step) <= high
    ]
    if not fitting:
        return ""
    ends = [f"{np.exp(each):.4g}" for each in (small[0], small[-1], large[0], large[-1])]
    n_small = int((np.log(values) <= small[-1]).sum())
    return (
        f"{n_small} of {several(len(values), 'row')} have {ends[0]} to {ends[1]} "
        f"and the others {ends[2]} to {ends[3]}; "
        f"are they in another unit, by a factor of {' or '.join(fitting)}?"
    )


def _unlikely(values: Array, role: str) -> str:
    plausible = PLAUSIBLE[role]
    low, most = float(values.min()), float(values.max())
    if low < plausible.least:
        return f"{low:.4g}; {plausible.too_small}"
    if role == "loss":
        most = low
    if most > plausible.most:
        return f"{most:.4g}; {plausible.too_large}"
    return ""


def _swapped(columns: Mapping[str, Array]) -> Iterator[str]:
    if not {"params", "tokens"} <= columns.keys():
        return
    ratio = float(np.median(columns["tokens"] / columns["params"]))
    if FEWEST_PER_PARAM <= ratio <= MOST_PER_PARAM:
        return
    away = {}
    for role, sign in (("tokens", 1), ("params", -1)):
        for step in (1e3, 1e6, 1e9):
            likely = f"{role} in units of {step:.0e} ({role}=COLUMN*{step:.0e})"
            away[likely] = abs(math.log(ratio * step**sign / 20))
    likely = min(away, key=lambda unit: away[unit])
    yield (
        f"{ratio:.2g} tokens for each parameter; are {likely}, or params and tokens swapped? "
        "If this is right, write params=COLUMN*1"
    )


def says_unit(asked: str) -> bool:
    """Return whether a column of tokens, as --columns names it, has its unit: a factor, or a unit in its name."""
    return "*" in asked or _unit(asked, "tokens")[1] != 1


def _unlike_6nd(columns: Mapping[str, Array]) -> Iterator[str]:
    if set(COUNTS) <= columns.keys():
        ratio = columns["flops"] / (6 * columns["params"] * columns["tokens"])
        off = (ratio > _FLOPS_OFF) | (ratio < 1 / _FLOPS_OFF)
        if off.any():
            yield (
                f"the FLOPs of {off.sum()} of {several(len(off), 'row')} are {ratio[off][0]:.2g} times 6 N D; "
                "in which units are params, tokens and flops? If this is right, add a factor of 1, as in flops=COLUMN*1"
            )


def _word(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def rows_where(frame: pd.DataFrame, where: str, source: str) -> pd.DataFrame:
    """Return the rows in which an expression holds, all if it is empty; comparisons with missing numbers are false.

    Names are columns, with underscores for characters that names cannot have, or `line` (`row` without lines).

    Raises:
        BadInput: an invalid expression, an unknown column, a row in which it has no value, or no row that matches.
    """
    if not where:
        return frame
    try:
        expression = Expression(where)
    except ValueError as error:
        raise BadInput(Problem(f"--where: {error}", ALLOWED)) from error
    word = str(frame.index.name or "row")
    columns = {word: frame.index.to_series()} | {_word(str(name)): frame[name] for name in frame}
    unknown = sorted(expression.names - columns.keys())
    if unknown:
        what = f"--where: {source} has no column {unknown[0]!r}"
        raise BadInput(Problem(what, ", ".join(columns), nearest(unknown[0], columns)))
    used = {name: columns[name].astype(object) for name in sorted(expression.names)}
    cells = {name: column.where(column.notna(), np.nan).tolist() for name, column in used.items()}
    holds = []
    for row, at in enumerate(frame.index):
        try:
            holds.append(bool(expression.value({name: values[row] for name, values in cells.items()})))
        except ValueError as error:
            raise BadInput(f"--where: {source}, {word} {at}: {error}") from error
    if not any(holds):
        raise BadInput(f"--where: {where!r} holds in no row of {source}")
    return frame[np.array(holds, bool)]
