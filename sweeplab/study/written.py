"""What a study file writes in a way of its own: lengths of time, counts, seeds, plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from sweeplab.errors import nearest
from sweeplab.hyperparameters import TABLE
from sweeplab.study.expressions import ALLOWED, Expression

SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
AUTO: Final = "auto"


class Refusal(ValueError):  # noqa: N818 - what it says is said to a person
    """Says of one value what is wrong with it, what is allowed and which name was probably meant.

    A value that `is_secret` is not repeated.
    """

    def __init__(self, what: str, allowed: str = "", nearest: str = "", is_secret: bool = False) -> None:
        super().__init__(what)
        self.what, self.allowed, self.nearest, self.is_secret = what, allowed, nearest, is_secret


@dataclass(frozen=True)
class Replicate:
    """A seed that is trained in the cells where `when` holds."""

    seed: int
    when: Expression


@dataclass(frozen=True)
class Plugin:
    """A Python file of the user's; `provides` names what it registered, by kind, when it was imported."""

    file: str
    sha256: str = ""
    provides: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """Return the plugin as a study file writes it, fit for JSON."""
        provides = {kind: list(names) for kind, names in self.provides.items()}
        return {"file": self.file, "sha256": self.sha256, "provides": provides}


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    parts = re.fullmatch(r"\s*(?:(\S+?)d)?(?:(\S+?)h)?(?:(\S+?)m)?(?:(\S+?)s)?\s*", written)
    try:
        amounts = [float(part) if part else 0.0 for part in parts.groups()] if parts else []
    except ValueError:
        amounts = []
    if not any(amounts):
        raise Refusal("is no length of time", "30m, 2h, 90s, 1h30m, or a number of seconds")
    return sum(amount * unit for amount, unit in zip(amounts, SECONDS.values(), strict=True))


def _count(written: Any) -> Any:
    if written != AUTO and (isinstance(written, bool) or not isinstance(written, int) or written < 1):
        raise Refusal("is no count", "auto, or a whole number, at least 1")
    return written


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[
    Positive,
    BeforeValidator(_seconds),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "^[0-9.dhms]+$"}]}
    ),
]
Count = Annotated[
    int | Literal["auto"],
    BeforeValidator(_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": AUTO}]}),
]


def _seed(written: Any) -> int | Replicate:
    entry = written if isinstance(written, dict) else {"seed": written}
    if unknown := sorted(entry.keys() - {"seed", "when"}):
        raise Refusal(
            f"has {unknown[0]!r}", "a number, or {seed, when}", nearest(unknown[0], ["seed", "when"])
        )
    try:
        number: int = TABLE["seed"].check(entry.get("seed"))
    except ValueError:
        raise Refusal("is no seed", "a whole number, at least 0") from None
    if "when" not in entry:
        return number
    try:
        return Replicate(number, Expression(str(entry["when"])))
    except ValueError as error:
        raise Refusal(str(error), ALLOWED) from None


Seed = Annotated[
    int | Replicate,
    PlainValidator(_seed),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": TABLE["seed"].high},
                {
                    "type": "object",
                    "properties": {
                        "seed": {"type": "integer", "minimum": 0, "maximum": TABLE["seed"].high},
                        "when": {"type": "string", "description": "Trained only in cells where this holds"},
                    },
                    "required": ["seed", "when"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def _plugin(written: Any) -> Plugin:
    entry = {"file": written} if isinstance(written, str) else written
    keys = [each.name for each in fields(Plugin)]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("file"), str):
        raise Refusal("is no plugin", "a Python file such as my_parts.py, or {file, sha256}")
    if unknown := sorted(entry.keys() - set(keys)):
        raise Refusal(f"has {unknown[0]!r}", ", ".join(keys), nearest(unknown[0], keys))
    if not isinstance(entry.get("sha256", ""), str) or not _are_names(entry.get("provides", {})):
        raise Refusal("is no plugin", "a sha256 is a text, and provides has lists of names")
    return Plugin(**entry)


def _are_names(provides: Any) -> bool:
    return isinstance(provides, Mapping) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in provides.values()
    )


PluginFile = Annotated[
    Plugin,
    PlainValidator(_plugin),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "minLength": 1},
                        "sha256": {"type": "string", "description": "Refuse the file where it is another"},
                        "provides": {
                            "type": "object",
                            "description": "What it registered when it was imported",
                        },
                    },
                    "required": ["file"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
