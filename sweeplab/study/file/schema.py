"""The JSON Schema of the study file, which editors use for completion and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import AliasChoices, TypeAdapter

from sweeplab.hyperparameters import AUTO, CATEGORIES, TABLE, Hyperparameter
from sweeplab.study.file.entries import takes_share
from sweeplab.study.file.resolve import preset
from sweeplab.study.options import OTHER_NAMES, PRUNERS, SAMPLERS, AlgorithmRow
from sweeplab.study.problems import shown
from sweeplab.study.search import EVALUATED, SUGGESTED, Choices, Derived, Divisors, Range, is_searched
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

    written = StudySpec.model_json_schema()
    schema = _inlined(written, written.pop("$defs"))
    sections = schema["properties"]
    data = sections["data"]["properties"]
    data["corpus"] = _one_of({name: corpus.meaning for name, corpus in CORPORA.items()})
    sentences = {name: str(kind.__doc__).partition("\n")[0] for name, kind in TOKENIZERS.items()}
    data["tokenizer"] = {
        "anyOf": [*_one_of(sentences)["anyOf"], {"type": "string", "pattern": "[.](json|model)$"}]
    }
    files = [{"required": [name]} for name in ("path", "train", "tokens")]
    sections["data"] |= {"required": [], "anyOf": [{"required": ["corpus", "tokenizer"]}, *files]}
    sections["preset"] = _one_of({name: preset(name).meaning for name in preset_names()})
    sections["objective"]["properties"]["metric"]["enum"] = list(METRICS)
    rows = [row for row in TABLE.values() if row.name != "seed"]
    sections["fixed"] |= _rows(rows, _value)
    differing = [row for row in rows if row.name not in EVALUATED]
    sections["grid"] |= _rows(differing, _values)
    sections["search"] |= _rows(filter(is_searched, rows), _search)
    sections["first_trial"] |= _rows(filter(is_searched, rows), _value)
    sections["cells"]["items"] = _rows(differing, _value)
    file = {"type": "string", "minLength": 1}
    sections["plugins"]["items"] = {"anyOf": [file, sections["plugins"]["items"]]}
    sections["sampler"] = _algorithms(SAMPLERS)
    sections["pruner"] = _algorithms(PRUNERS)
    return {"$schema": DIALECT, "title": "A sweeplab study", **schema}


def _rows(rows: Iterable[Hyperparameter], write: Callable[[Hyperparameter], Schema]) -> Schema:
    written = {}
    for row in rows:
        unit = f" [{row.unit}]" if row.unit else ""
        text = f"{row.meaning}{unit}. {CATEGORIES[row.category]}; {row.allowed}; default {shown(row.default)}"
        written[row.name] = {"description": text, **write(row)}
    return {"type": "object", "properties": written, "additionalProperties": False}


def _one_of(meanings: Mapping[str, str]) -> Schema:
    return {"anyOf": [{"const": name, "description": meaning} for name, meaning in meanings.items()]}


def _bounds(row: Hyperparameter) -> Schema:
    return {key: getattr(row, bound) for bound, key in _BOUNDS.items() if getattr(row, bound) is not None}


def _value(row: Hyperparameter) -> Schema:
    schema: Schema
    if row.kind == "floats":
        count, item = len(row.sample), {"type": "number", **_bounds(row)}
        schema = {"type": "array", "items": item, "minItems": count, "maxItems": count}
    elif row.choices:
        schema = {"enum": list(row.choices)}
    else:
        schema = {"type": _TYPES[row.kind], **_bounds(row)}
    forms = [schema]
    if takes_share(row):
        forms.append({"type": "string", "pattern": r"^[\d.]+ *%"})
    if row.automatic:
        forms.append({"const": AUTO})
    if row.optional:
        forms.append({"type": "null"})
    return {"anyOf": forms} if len(forms) > 1 else schema


def _values(row: Hyperparameter) -> Schema:
    return {"type": "array", "items": _value(row), "minItems": 1, "uniqueItems": True}


def _search(row: Hyperparameter) -> Schema:
    forms: list[Schema] = [_values(row), _form(Derived), _form(Choices, choices=_values(row))]
    if row.suggested is not None:
        forms.append({"const": SUGGESTED})
    if row.kind in ("int", "float"):
        end: Schema = {"type": _TYPES[row.kind], **_bounds(row)}
        forms.append(_form(Range, min=end, max=end))
        if row.kind == "int":
            forms.append(_form(Divisors, min=end, max=end) | {"required": ["divides"]})
    return {"anyOf": forms}


def _form(entry: type[Any], **replaced: Schema) -> Schema:
    schema: Schema = _inlined(TypeAdapter(entry).json_schema(), {})
    return {**schema, "properties": {**schema["properties"], **replaced}}


def _algorithms(rows: Mapping[str, AlgorithmRow]) -> Schema:
    meanings = {name: row.meaning for name, row in rows.items()}
    meanings |= {other: rows[name].meaning for other, name in OTHER_NAMES.items() if name in rows}
    forms = []
    for name, row in rows.items():
        model = row.options
        written = model.model_json_schema()
        form: Schema = _inlined(written, written.pop("$defs", {}))
        options = form.get("properties", {})
        for field in model.model_fields.values():
            if isinstance(field.validation_alias, AliasChoices):
                first, *others = map(str, field.validation_alias.choices)
                options |= dict.fromkeys(others, options[first])
        names = [name, *(other for other, meant in OTHER_NAMES.items() if meant == name)]
        form |= {"description": row.meaning, "required": ["type", *form.get("required", ())]}
        forms.append(form | {"properties": {"type": {"enum": names}, **options}})
    return {"anyOf": [_one_of(meanings), *forms]}


def _inlined(schema: Any, parts: Mapping[str, Schema]) -> Any:
    """Inline the parts that pydantic refers to, and drop the titles that it makes from names."""
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        schema = {**parts[schema["$ref"].rpartition("/")[2]], **schema}
    kept = {key: each for key, each in schema.items() if key not in ("title", "$ref")}
    return {{"oneOf": "anyOf"}.get(key, key): _inlined(each, parts) for key, each in kept.items()}
