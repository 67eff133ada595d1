"""The study file as JSON Schema, from which editors complete and explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeplab.hyperparameters import AUTO, CATEGORIES, TABLE, Hyperparameter
from sweeplab.study.algorithms import OTHER_NAMES, PRUNERS, SAMPLERS, WORDS, Kind, Option, options
from sweeplab.study.file.presets import preset, preset_names
from sweeplab.study.file.search import FORMS, SUGGESTED, is_searched
from sweeplab.study.places import SECTIONS, shown
from sweeplab.study.spec import StudySpec

Schema = dict[str, Any]
# The dialect that editors' YAML support knows best.
DIALECT = "http://json-schema.org/draft-07/schema#"
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}
_EXPRESSION: Schema = {"type": "string", "description": "Arithmetic over hyperparameters and model facts"}


def study_schema() -> Schema:
    """Return the JSON Schema of a study file; names, types, choices and meanings are the table's."""
    from sweeplab.data.corpora import CORPORA
    from sweeplab.data.tokenizers import TOKENIZERS
    from sweeplab.train.metrics import METRICS

    schema = _untitled(StudySpec.model_json_schema())
    parts, sections = schema.pop("$defs"), schema["properties"]
    for name, section in sections.items():
        if reference := section.pop("$ref", ""):
            sections[name] = parts[reference.rpartition("/")[2]]
    data = sections["data"]["properties"]
    data["corpus"] = _one_of({name: corpus.meaning for name, corpus in CORPORA.items()})
    data["tokenizer"] = _one_of(
        {name: str(kind.__doc__).partition("\n")[0] for name, kind in TOKENIZERS.items()}
    )
    sections["preset"] = _one_of({name: preset(name).meaning for name in preset_names()})
    sections["objective"]["properties"]["metric"]["enum"] = list(METRICS)
    rows = {name: row for name, row in TABLE.items() if name != "seed"}
    searched = {name: row for name, row in rows.items() if is_searched(row)}
    for section, held, write in zip(
        SECTIONS, (rows, rows, searched), (_value, _values, _search), strict=True
    ):
        written = {name: _described(row, write(row)) for name, row in held.items()}
        sections[section] = _keys(written, described=sections[section]["description"])
    values = {name: _described(row, _value(row)) for name, row in rows.items()}
    sections["cells"]["items"] = _keys(values)
    sections["constraints"]["items"] = _EXPRESSION
    sections["sampler"] = _algorithms(SAMPLERS)
    sections["pruner"] = _algorithms(PRUNERS)
    return {"$schema": DIALECT, "title": "A sweeplab study", **schema}


def _keys(properties: Mapping[str, Schema], required: tuple[str, ...] = (), described: str = "") -> Schema:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    schema |= {"required": list(required)} if required else {}
    return schema | ({"description": described} if described else {})


def _one_of(meanings: Mapping[str, str]) -> Schema:
    return {"anyOf": [{"const": name, "description": meaning} for name, meaning in meanings.items()]}


def _described(row: Hyperparameter, schema: Schema) -> Schema:
    unit = f" [{row.unit}]" if row.unit else ""
    text = f"{row.meaning}{unit}. {CATEGORIES[row.category]}; {row.allowed}; default {shown(row.default)}"
    return {"description": text, **schema}


def _number(row: Hyperparameter) -> Schema:
    bounds = {key: getattr(row, bound) for bound, key in _BOUNDS.items() if getattr(row, bound) is not None}
    return {"type": "integer" if row.kind == "int" else "number", **bounds}


def _value(row: Hyperparameter) -> Schema:
    """Return the schema of one literal value."""
    if row.kind == "floats":
        n_numbers = len(row.sample)
        schema: Schema = {
            "type": "array", "items": _number(row), "minItems": n_numbers, "maxItems": n_numbers
        }  # fmt: skip
    elif row.choices:
        schema = {"enum": list(row.choices)}
    elif row.kind in ("bool", "str"):
        schema = {"type": WORDS[row.kind][2]}
    else:
        schema = _number(row)
    others = ([{"const": AUTO}] if row.automatic else []) + ([{"type": "null"}] if row.optional else [])
    return {"anyOf": [schema, *others]} if others else schema


def _values(row: Hyperparameter) -> Schema:
    return {"type": "array", "items": _value(row), "minItems": 1, "uniqueItems": True}


def _search(row: Hyperparameter) -> Schema:
    """Return the schema of everything that may stand for a row under `search`."""
    keys: dict[str, Schema] = {
        "expr": _EXPRESSION,
        "when": {**_EXPRESSION, "description": "Sampled only where this holds; else the default is taken"},
        "choices": _values(row),
        "min": _number(row),
        "max": _number(row),
        "log": {"type": "boolean", "description": "Even over the logarithm"},
        "step": {"type": _number(row)["type"], "exclusiveMinimum": 0},
        "divides": {"type": "string", "description": "A divisor of this hyperparameter"},
    }
    forms: dict[str, tuple[str, ...]] = {"expr": ("expr",), "choices": ("choices",)}
    forms |= {"min": ("min", "max")} if row.kind in ("int", "float") else {}
    forms |= {"divides": ("divides",)} if row.kind == "int" else {}
    allowed: list[Schema] = [{"const": SUGGESTED}] if row.suggested is not None else []
    allowed.append(_values(row))
    for form, required in forms.items():
        allowed.append(_keys({key: keys[key] for key in FORMS[form][0]}, required))
    return {"anyOf": allowed}


def _algorithms(kinds: Mapping[str, Kind]) -> Schema:
    """Return the schema of a sampler or pruner: a name, or a type with its options beside it."""
    meanings = {name: kind.meaning for name, kind in kinds.items()}
    meanings |= {other: kinds[name].meaning for other, name in OTHER_NAMES.items() if name in kinds}
    forms = []
    for name, kind in kinds.items():
        known = options(kind)
        written = {option.name: _option(option) for option in known.values()}
        written |= {alias: written[option] for alias, option in kind.aliases.items()}
        required = tuple(option.name for option in known.values() if option.required)
        names = [name, *(other for other, meant in OTHER_NAMES.items() if meant == name)]
        forms.append(_keys({"type": {"enum": names}, **written}, ("type", *required), kind.meaning))
    return {"anyOf": [_one_of(meanings), *forms]}


def _option(option: Option) -> Schema:
    # What is no plain value, a pruner in a pruner, is left to the reader of the file.
    plain = option.words <= WORDS.keys()
    return {"type": [WORDS[word][2] for word in sorted(option.words)]} if plain else {}


def _untitled(schema: Any) -> Any:
    """Drop the titles that pydantic makes of names."""
    if isinstance(schema, dict):
        return {key: _untitled(each) for key, each in schema.items() if key != "title"}
    return [_untitled(each) for each in schema] if isinstance(schema, list) else schema
