"""What a value looks like, written down and compared: all names and types, and what is the same everywhere.

A number or a text that is the same wherever the tests run stands as it is. What is measured stands as its type:
`<float>`, `<int>`, `<str>`; in a text, `<n>`, `<id>`, `<place>`. The rows of a list are one row with all that they
have (`a | b`; `key?` is in some of them), or stand by their names where each has one of its own.
`SWEEPLAB_UPDATE_GOLDEN=1 pytest tests/characterization` writes what there is now.
"""

import json
import math
import os
import re
import zlib
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
IS_UPDATED = bool(os.environ.get("SWEEPLAB_UPDATE_GOLDEN"))
# The source distribution has no commit that a study could record.
IS_CHECKOUT = (Path(__file__).parents[2] / ".git").exists()
_OF_GIT = re.compile(
    r"/git: |.*/tags/(?:mlflow\.source\.git\.commit|sweeplab\.git_dirty): is gone"
)
MOST_VALUES, MOST_ROWS = 8, 30
# What a row of a list may be called by.
NAMES = ("name", "place", "cell", "title", "law", "key")
# Hyperparameters that are drawn: the same everywhere, unlike other long numbers.
DRAWN = ("learning_rate", "weight_decay", "min_lr")
HYPERPARAMETERS = {"block_size", "n_embd", "max_new_tokens"}  # where these are, all of them are
# What depends on the machine, the moment or the version.
_MEASURED = re.compile(
    r"(^|[._ ])(seconds?|time|started|ended|pid|timestamp|utc|host|user|commit|dirty|python|torch|sweeplab"
    r"|sources|mlflow|cpu|dtype_by|platform|packages|loadavg|cores|text|library|tokens_per_second|slot_steps|found|cure|(size|free)_bytes)$"
)
_HIDDEN = (
    (re.compile(r"(about |under )?\S+( to \S+)? more, by"), "<left> more, by"),
    (re.compile(r" (about |under )\S+ left\b"), ""),
    (re.compile(r"(?<=^dtype float32: ).*"), "<why>"),
    (re.compile(r"\b\d+\.\d{2,}(e[-+]?\d+)?\b|\b\d+\.\d+e[-+]?\d+\b"), "<n>"),
    (re.compile(r"\b\d{8}-\d{6}\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{12,}\b|(?<=/experiments/)\d+"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms|min|h|GiB|GB)\b"), "<n> \\2"),
)


class Shapes:
    """Describes values; texts lose the folders they name."""

    def __init__(self, *folders, floats=False, unlike=(), brief=True):
        self._folders = sorted(map(str, folders), key=len, reverse=True)
        self._floats, self._unlike, self._brief = floats, unlike, brief

    def of(self, value, key=""):
        """Return what the value looks like."""
        if isinstance(value, dict):
            if self._brief and value.keys() >= HYPERPARAMETERS:
                value = _briefly(value)
            return {
                self.text(str(name)): self.of(each, str(name)) for name, each in value.items()
            }
        if (
            key == "workers"
            and isinstance(value, list)
            and all("process" in each for each in value)
        ):
            return "<places>"  # of workers, while there are some
        if isinstance(value, list | tuple):
            return self._of_list(list(value), key)
        if key in self._unlike or _MEASURED.search(key):
            return "<measured>" if key in ("commit", "dirty") else _type_of(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return self._of_float(value, key)
        return self.text(value) if isinstance(value, str) else value

    def text(self, text):
        """Return the text without what is different next time."""
        for folder in self._folders:
            text = text.replace(folder, "<place>")
        for pattern, instead in _HIDDEN:
            text = pattern.sub(instead, text)
        return text

    def _of_float(self, value, key):
        if not math.isfinite(value):
            return str(value)
        if self._floats:
            return float(f"{value:.3g}")
        is_plain = float(f"{value:.3g}") == value or value.is_integer()
        return float(f"{value:.6g}") if is_plain or key in DRAWN else "<float>"

    def _of_list(self, rows, key):
        shapes = [self.of(row, key) for row in rows]
        if not rows or not all(isinstance(row, dict) for row in rows):
            is_short = len(rows) <= MOST_ROWS and all(
                isinstance(each, str | int) for each in rows
            )
            return shapes if is_short else {f"x{len(rows)}": _merged(shapes)}
        name = next(
            (
                n
                for n in NAMES
                if len({str(row.get(n)) for row in rows if n in row}) == len(rows)
            ),
            None,
        )
        if name is None:
            return {f"x{len(rows)}": _merged(shapes)}
        if len(rows) <= MOST_ROWS:
            return {f"{name} {shape.pop(name)}": shape for shape in shapes}
        return {
            f"{name}s": " ".join(str(shape.pop(name)) for shape in shapes),
            "each": _merged(shapes),
        }


def _briefly(values):
    """Return a dict with its hyperparameters, which run.json has one by one, as their number and a digest."""
    names = list(values)
    first, last = names.index("block_size"), names.index("max_new_tokens")
    of_all = {name: each for name, each in values.items() if first <= names.index(name) <= last}
    plain = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in of_all.items()}
    return {
        **{name: values[name] for name in names[:first]},
        "all hyperparameters": f"{len(of_all)}, {zlib.crc32(json.dumps(plain).encode()):08x}",
        **{name: values[name] for name in names[last + 1 :]},
    }


def _merged(shapes):
    if all(isinstance(each, dict) for each in shapes):
        keys = dict.fromkeys(key for each in shapes for key in each)
        return {
            key if all(key in each for each in shapes) else f"{key}?": _merged(
                [s[key] for s in shapes if key in s]
            )
            for key in keys
        }
    if all(isinstance(each, list) for each in shapes):
        unlike = [each for index, each in enumerate(shapes) if each not in shapes[:index]]
        return (
            unlike[0]
            if len(unlike) == 1
            else [_merged([each for row in shapes for each in row])]
        )
    texts = list(
        dict.fromkeys(each if isinstance(each, str) else json.dumps(each) for each in shapes)
    )
    if len(texts) == 1:
        return shapes[0]
    if len(texts) > MOST_VALUES:
        texts = list(dict.fromkeys(_type_of(each) for each in shapes))
    return " | ".join(sorted(texts))


def _type_of(shape):
    if isinstance(shape, str) and shape.startswith("<") and shape.endswith(">"):
        return shape
    return "null" if shape is None else f"<{type(shape).__name__}>"


def differences(golden, now, path=""):
    """Say in which places two descriptions differ."""
    if isinstance(golden, dict) and isinstance(now, dict):
        gone = [f"{path}/{key}: is gone" for key in golden if key not in now]
        new = [f"{path}/{key}: is new: {now[key]!r}" for key in now if key not in golden]
        both = [
            each
            for k in golden
            if k in now
            for each in differences(golden[k], now[k], f"{path}/{k}")
        ]
        return gone + new + both
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        pairs = zip(golden, now, strict=True)
        return [
            each for i, (a, b) in enumerate(pairs) for each in differences(a, b, f"{path}/{i}")
        ]
    if isinstance(golden, float) and isinstance(now, int | float):
        return (
            []
            if math.isclose(golden, now, rel_tol=0.02)
            else [f"{path}: was {golden}, is {now}"]
        )
    if isinstance(golden, list) and isinstance(now, list):
        gone, new = (
            [each for each in a if each not in b] for a, b in ((golden, now), (now, golden))
        )
        return [f"{path}: had {len(golden)}, has {len(now)}; gone: {gone}; new: {new}"]
    return (
        []
        if golden == now and type(golden) is type(now)
        else [f"{path}: was {golden!r}, is {now!r}"]
    )


class Golden:
    """One file of descriptions, by what they are of."""

    def __init__(self, name):
        self._file = GOLDEN / f"{name}.json"
        self._kept = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}

    def check(self, key, now):
        """Compare with what is written, and say which places differ; or write it."""
        now = json.loads(json.dumps(now))
        if IS_UPDATED:
            self._kept[key] = now
            kept = dict(sorted(self._kept.items()))
            written = json.dumps(kept, indent=1, ensure_ascii=False)
            self._file.write_text(written + "\n", "utf-8")
            return
        assert key in self._kept, (
            f"{self._file.name} has no {key!r}; SWEEPLAB_UPDATE_GOLDEN=1 writes it"
        )
        found = [
            each
            for each in differences(self._kept[key], now)
            if IS_CHECKOUT or not _OF_GIT.match(each)
        ]
        assert not found, f"{key}\n" + "\n".join(found)
