"""The JSON Schema of the study file, which editors use for completion and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sweeplab.hyperparameters import AUTO, CATEGORIES, TABLE, Hyperparameter
from sweeplab.study.algorithms import OTHER_NAMES, PRUNERS, SAMPLERS, WORDS, AlgorithmRow, Option
from sweeplab.study.file.entries import EVALUATED, FORMS, SUGGESTED, is_searched, takes_share
from sweeplab.study.file.resolve import preset
from sweeplab.study.problems import shown
from sweeplab.study.search import CONFIDENCES, MEDIUM
from sweeplab.study.spec import StudySpec, preset_names

Schema = dict[str, Any]
# The dialect that YAML support in editors handles best.
DIALECT = "http://json-schema.org/draft-07/schema#"
_BOUNDS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}
_EXPRESSION: Schema = {"type": "string", "description": "Arithmetic over hyperparameters and model facts"}


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
    sections["constraints"]["items"] = _EXPRESSION
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
    return _keys(written)


def _keys(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = [*required]
    return schema


def _one_of(meanings: Mapping[str, str]) -> Schema:
    return {"anyOf": [{"const": name, "description": meaning} for name, meaning in meanings.items()]}


def _number(row: Hyperparameter) -> Schema:
    bounds = {key: getattr(row, bound) for bound, key in _BOUNDS.items() if getattr(row, bound) is not None}
    return {"type": "integer" if row.kind == "int" else "number", **bounds}


def _value(row: Hyperparameter) -> Schema:
    if row.kind == "floats":
        count = len(row.sample)
        schema: Schema = {"type": "array", "items": _number(row), "minItems": count, "maxItems": count}
    elif row.choices:
        schema = {"enum": list(row.choices)}
    elif row.kind in ("bool", "str"):
        schema = {"type": WORDS[row.kind][2]}
    else:
        schema = _number(row)
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
    keys: dict[str, Schema] = {
        "expr": _EXPRESSION,
        "when": {**_EXPRESSION, "description": "Sampled only where this holds; else the default is used"},
        "choices": _values(row),
        "min": _number(row),
        "max": _number(row),
        "log": {"type": "boolean", "description": "Sample evenly over the logarithm"},
        "step": {"type": _number(row)["type"], "exclusiveMinimum": 0},
        "prior": {
            "type": "number",
            "description": "Where the best value is believed to be; for the sampler joint",
        },
        "confidence": {
            "enum": list(CONFIDENCES),
            "description": "How firmly it is believed; default: " + MEDIUM,
        },
        "divides": {"type": "string", "description": "Sample a divisor of this hyperparameter"},
    }
    forms: dict[str, tuple[str, ...]] = {"expr": ("expr",), "choices": ("choices",)}
    if row.kind in ("int", "float"):
        forms["min"] = ("min", "max")
    if row.kind == "int":
        forms["divides"] = ("divides",)
    allowed: list[Schema] = [{"const": SUGGESTED}] if row.suggested is not None else []
    mappings = (_keys({key: keys[key] for key in FORMS[form]}, needed) for form, needed in forms.items())
    return {"anyOf": [*allowed, _values(row), *mappings]}


def _algorithms(rows: Mapping[str, AlgorithmRow]) -> Schema:
    meanings = {name: row.meaning for name, row in rows.items()}
    meanings |= {other: rows[name].meaning for other, name in OTHER_NAMES.items() if name in rows}
    forms = []
    for name, row in rows.items():
        known = row.options()
        written = {option: _option(each) for option, each in known.items()}
        written |= {alias: written[option] for alias, option in row.aliases.items()}
        required = (option for option, each in known.items() if each.required)
        names = [name, *(other for other, meant in OTHER_NAMES.items() if meant == name)]
        form = _keys({"type": {"enum": names}, **written}, ("type", *required))
        forms.append(form | {"description": row.meaning})
    return {"anyOf": [_one_of(meanings), *forms]}


def _option(option: Option) -> Schema:
    if option.words <= WORDS.keys():
        return {"type": [WORDS[word][2] for word in sorted(option.words)]}
    return {}  # no plain value: a pruner in a pruner is checked by the reader of the file


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
