"""The JSON Schema of the study file, which editors use for completion and explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from sweeplab.hyperparameters import AUTO, CATEGORIES, TABLE, Hyperparameter
from sweeplab.study.file.entries import takes_share
from sweeplab.study.file.resolve import preset
from sweeplab.study.options import PRUNERS, SAMPLERS, AlgorithmRow
from sweeplab.study.problems import shown
from sweeplab.study.search import EVALUATED, SUGGESTED, Choices, Derived, Range, is_searched
from sweeplab.study.spec import StudySpec, preset_names

Schema = dict[str, Any]
# The dialect that YAML support in editors handles best.
DIALECT = "http://json-schema.org/draft-07/schema#"
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}
_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


def study_schema() -> Schema:
    """Return the JSON Schema of a study file; names, types, choices and meanings come from the table."""
    from sweeplab.data.corpora import CORPORA
    from sweeplab.data.tokenizers import TOKENIZERS
    from sweeplab.train.run import METRICS

    schema = StudySpec.model_json_schema()
    sections, parts = schema["properties"], schema["$defs"]
    data = parts["DataSpec"]
    corpora = _one_of({name: corpus.meaning for name, corpus in CORPORA.items()})
    tokenizers = _one_of({name: str(kind.__doc__).partition("\n")[0] for name, kind in TOKENIZERS.items()})
    file = {"type": "string", "pattern": "[.](json|model)$"}
    data["properties"] |= {"corpus": corpora, "tokenizer": {"anyOf": [tokenizers, file]}}
    data["anyOf"] = [{"required": [name]} for name in ("path", "train", "tokens")]
    data["anyOf"].append({"required": data.pop("required")})
    parts["ObjectiveSpec"]["properties"]["metric"]["enum"] = list(METRICS)
    rows = [row for row in TABLE.values() if row.name != "seed"]
    differing = [row for row in rows if row.name not in EVALUATED]
    searched = [row for row in rows if is_searched(row)]
    sections["preset"] = _one_of({name: preset(name).meaning for name in preset_names()})
    sections["fixed"] |= _rows(rows, _value)
    sections["grid"] |= _rows(differing, _values)
    sections["search"] |= _rows(searched, _search)
    sections["first_trial"] |= _rows(searched, _value)
    sections["cells"]["items"] = _rows(differing, _value)
    sections["plugins"]["items"] = {"anyOf": [{"type": "string"}, sections["plugins"]["items"]]}
    sections["sampler"] = _algorithms(SAMPLERS)
    sections["pruner"] = _algorithms(PRUNERS)
    return {"$schema": DIALECT, "title": "A sweeplab study", **schema}


def _rows(rows: list[Hyperparameter], write: Callable[[Hyperparameter], Schema]) -> Schema:
    written = {}
    for row in rows:
        unit = f" [{row.unit}]" if row.unit else ""
        text = f"{row.meaning}{unit}. {CATEGORIES[row.category]}; {row.allowed}; default {shown(row.default)}"
        written[row.name] = {"description": text, **write(row)}
    return {"type": "object", "properties": written, "additionalProperties": False}


def _one_of(meanings: Mapping[str, str]) -> Schema:
    return {"anyOf": [{"const": name, "description": meaning} for name, meaning in meanings.items()]}


def _value(row: Hyperparameter) -> Schema:
    value: Schema = {"type": _TYPES.get(row.kind, "number")}
    for bound, key in _BOUNDS.items():
        if getattr(row, bound) is not None:
            value[key] = getattr(row, bound)
    if row.choices:
        value = {"enum": list(row.choices)}
    if row.kind == "floats":
        count = len(row.sample)
        value = {"type": "array", "items": value, "minItems": count, "maxItems": count}
    forms = [value]
    if takes_share(row):
        forms.append({"type": "string", "pattern": r"^[\d.]+ *%"})
    if row.automatic:
        forms.append({"const": AUTO})
    if row.optional:
        forms.append({"type": "null"})
    return {"anyOf": forms}


def _values(row: Hyperparameter) -> Schema:
    return {"type": "array", "items": _value(row), "minItems": 1, "uniqueItems": True}


def _search(row: Hyperparameter) -> Schema:
    forms = [_values(row), _form(Derived), _form(Choices)]
    if row.suggested is not None:
        forms.append({"const": SUGGESTED})
    if row.kind in ("int", "float"):
        forms.append(_form(Range))
    return {"anyOf": forms}


@cache
def _form(entry: type[Any]) -> Schema:
    return TypeAdapter(entry).json_schema()


def _algorithms(rows: Mapping[str, AlgorithmRow]) -> Schema:
    forms = [_one_of({name: row.meaning for name, row in rows.items()})]
    for name, row in rows.items():
        form = row.options.model_json_schema(by_alias=False)
        options = form.get("properties", {})
        for ours, optunas in row.aliases.items():
            options[ours] = options[optunas]
        options["type"] = {"const": name}
        required = ["type", *form.get("required", ())]
        forms.append({**form, "description": row.meaning, "properties": options, "required": required})
    return {"anyOf": forms}
