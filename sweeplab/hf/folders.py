"""Export runs to folders that `from_pretrained` of `transformers` opens, and import such folders as checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sweeplab.data.objectives import OBJECTIVES, settled_objective, special_tokens
from sweeplab.data.objectives.base import BOS, EOS, MASK, PAD, label, sentinel
from sweeplab.data.objectives.pairs import Classification, PairsObjective
from sweeplab.data.objectives.tokens import Span
from sweeplab.data.tokenizers import IdsTokenizer, Tokenizer
from sweeplab.data.tokenizers.library import (
    Definition,
    contents_of,
    read_tokenizer,
    write_tokenizer,
)
from sweeplab.errors import BadInput, Problem, nearest
from sweeplab.files import make_folder, read_bytes, write_whole
from sweeplab.formatting import several
from sweeplab.hf.architectures import ARCHITECTURES, WITHOUT_ROW
from sweeplab.hf.mapping import LAYOUT, LAYOUT_KEY, Architecture
from sweeplab.hyperparameters import TABLE, Hyperparameters
from sweeplab.model.accounting import n_params
from sweeplab.model.attention import why_not
from sweeplab.model.shape import ModelShape, settled
from sweeplab.tracking.models import LoadedRun
from sweeplab.train.checkpoint import write_checkpoint
from sweeplab.train.devices import settle_devices

TRAIN_SO = "a model with these values comes from `sweeplab run STUDY --name NEW -o NAME=VALUE`"


def architecture_of(shape: ModelShape, imported_as: str = "") -> Architecture:
    """Return the class that can express a model: that of the folder it was imported from, or the first of its family.

    Raises:
        BadInput: no class can; the message says which values the closest one of its family does not allow.
    """
    if imported_as and not ARCHITECTURES[imported_as].unmet(shape):
        return ARCHITECTURES[imported_as]
    of_family = (
        known for known in ARCHITECTURES.values() if known.fixed["family"] == shape.family
    )
    closest = min(of_family, key=lambda architecture: len(architecture.unmet(shape)))
    unmet = closest.unmet(shape)
    if not unmet:
        return closest
    names = dict.fromkeys(name for condition in unmet for name in condition.names.split())
    values = ", ".join(f"{name} {str(getattr(shape, name)).lower()}" for name in names)
    allowed = "; ".join(condition.text for condition in unmet)
    raise BadInput(
        Problem(f"{closest.class_name} cannot express {values}", f"{allowed}; {TRAIN_SO}")
    )


def export_run(run: LoadedRun, folder: Path, force: bool = False) -> Architecture:
    """Write config.json, model.safetensors, generation_config.json, tokenizer.json and tokenizer_config.json.

    Raises:
        BadInput: no class can express the run, or the folder already has a model and `force` is not set.
    """
    architecture = architecture_of(run.model.shape, run.facts.get("architecture", ""))
    if (folder / "config.json").exists() and not force:
        raise BadInput(
            Problem("the folder already has a model", "--force to replace it", file=folder)
        )
    tokens, layout = _token_ids(run), {name: getattr(run.values, name) for name in LAYOUT}
    config = architecture.config(run.values, tokens) | _labels(run) | {LAYOUT_KEY: layout}
    links, weights = architecture.links(run.model.shape, config), run.model.weights
    tensors = dict(links.constant)
    for link in links.links:
        tensors |= link.give(weights[link.ours])
    written = {
        **_tokenizer_files(run),
        "generation_config.json": tokens | _sampling(run),
        "config.json": config,
    }
    try:
        make_folder(folder)
        write_whole(folder / "model.safetensors", save(tensors, {"format": "pt"}))
        for name, content in written.items():
            text = json.dumps(content, indent=2, ensure_ascii=False)
            write_whole(folder / name, f"{text}\n".encode())
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=folder)) from error
    return architecture


def without_class(run: LoadedRun) -> str:
    """Explain why an encoder of labels is exported with its head for tokens, and which logits to use.

    Returns an empty string for every other run.
    """
    if not run.model.shape.of_family.transforms or label(0) not in run.special:
        return ""
    first = run.special[label(0)]
    which = f"logits {first} to {first + (run.values.n_labels or 0) - 1}"
    # There our encoders have an activation and a norm, between the last block and the logits.
    other = "BertForSequenceClassification has a tanh and no norm there"
    return f"its labels are {which} at the first token: the head has a norm after its activation, and {other}"


def _token_ids(run: LoadedRun) -> dict[str, int | None]:
    """Return the special tokens for config.json; without a padding token, the start of a target also pads."""
    special = run.special
    ids = {f"{name}_token_id": special.get(name) for name in (BOS, EOS, PAD)}
    if run.model.shape.of_family.reads_source:
        start = special.get(BOS)
        ids |= {"decoder_start_token_id": start, "pad_token_id": special.get(PAD, start)}
    return ids


def _labels(run: LoadedRun) -> dict[str, Any]:
    """Return the names of a classifier's labels for config.json; their logits are the vocabulary's last ones."""
    if label(0) not in run.special:
        return {}
    return {
        "id2label": dict(enumerate(run.labels)),
        "label2id": {name: index for index, name in enumerate(run.labels)},
    }


def _tokenizer_files(run: LoadedRun) -> dict[str, Definition]:
    if isinstance(run.tokenizer, IdsTokenizer):
        return {}
    definition = write_tokenizer(run.tokenizer, run.special, run.model.shape.vocab_size)
    contents = contents_of(definition)
    written = {name: contents[number] for name, number in run.special.items()}
    named = {
        f"{name}_token": written[name] for name in (BOS, EOS, PAD, MASK) if name in written
    }
    sentinels = [
        written[name] for name in map(sentinel, range(len(written))) if name in written
    ]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": run.model.shape.block_size,
        # The default includes token types, which GPT-2 would take for further tokens.
        "model_input_names": ["input_ids", "attention_mask"],
        **named,
    }
    if sentinels:
        config["extra_special_tokens"] = sentinels
    return {"tokenizer.json": definition, "tokenizer_config.json": config}


def _sampling(run: LoadedRun) -> dict[str, Any]:
    if run.model.shape.of_family.transforms:
        return {}
    values = run.values
    sampled = {"do_sample": values.temperature > 0, "max_new_tokens": values.max_new_tokens}
    if not values.temperature:
        return sampled
    top = {"top_k": values.top_k or 0, "top_p": values.top_p or 1.0}
    return {**sampled, "temperature": values.temperature, **top}


# Names of a norm's gain and bias in releases before 4.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Imported:
    """Facts about an imported model; `without` is the reason if the folder's tokenizer could not be used."""

    family: str
    n_params: int
    tokenizer: str
    without: str


def import_folder(source: Path, target: Path, name: str, force: bool = False) -> Imported:
    """Write a checkpoint of a folder's model.

    Raises:
        BadInput: the folder is incomplete, its model is not supported, or the target already has a checkpoint.
    """
    if (target / "model.json").exists() and not force:
        raise BadInput(
            Problem(
                "there is already a run",
                "--name for another name, --force to replace it",
                file=target,
            )
        )
    config = _json(source / "config.json")
    kind = str(config.get("model_type"))
    if kind in WITHOUT_ROW:
        field, effect = WITHOUT_ROW[kind]
        what = f"config.json is of {kind}, whose {field} {effect}: no hyperparameter does"
        raise BadInput(Problem(what, " | ".join(ARCHITECTURES)))
    if kind not in ARCHITECTURES:
        raise BadInput(
            Problem(
                f"config.json has the unsupported model_type {kind!r}",
                " | ".join(ARCHITECTURES),
                nearest(kind, ARCHITECTURES),
            )
        )
    architecture = ARCHITECTURES[kind]
    tensors = _tensors(source, architecture)
    values = _values(architecture, config, tensors)
    shape = ModelShape.named(values)
    weights = _weights(architecture, shape, config, tensors)
    definition = (
        _json(source / "tokenizer.json") if (source / "tokenizer.json").exists() else None
    )
    tokenizer, why = _tokenizer(definition, shape)
    special = _special(source, config, definition, shape)
    values["objective"] = _objective(values, special)
    facts: dict[str, Any] = {
        "run": name,
        "kind": "imported",
        "architecture": kind,
        "values": values,
    }
    try:
        known = special_tokens(Hyperparameters.of(values)).ids
    except ValueError as error:  # a block_size may have no room for them
        raise BadInput(f"config.json: {error}") from error
    if special != known:
        facts["special"] = special
    if values["objective"] == Classification.name:
        facts["labels"] = _label_names(config, values["n_labels"])
    facts["tokenizer"] = tokenizer.to_json()
    try:
        write_checkpoint(target, "model", weights, {**facts, "val_loss": None, "iteration": 0})
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=target)) from error
    return Imported(shape.family, n_params(shape), tokenizer.name, why)


def _label_names(config: Mapping[str, Any], n_labels: int | None) -> list[str]:
    named: Any = config.get("id2label")
    wanted = [str(index) for index in range(n_labels or 0)]
    is_whole = isinstance(named, dict) and [*named] == wanted
    if (
        wanted
        and is_whole
        and all(isinstance(label_name, str) for label_name in named.values())
    ):
        return [*named.values()]
    raise BadInput(
        "config.json is of a classifier, but id2label does not name the labels 0 to n_labels - 1"
    )


def _json(file: Path) -> dict[str, Any]:
    _check_file(file)
    try:
        text = read_bytes(file).decode()
        content = json.loads(text)
        # Escapes can produce half of a surrogate pair.
        json.dumps(content, ensure_ascii=False).encode()
    except (OSError, RecursionError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"not JSON: {error}"
        raise BadInput(Problem(reason, file=file)) from error
    if not isinstance(content, dict):
        raise BadInput(Problem("not a JSON object", file=file))
    return content


def _check_file(file: Path) -> None:
    # The methods of Path raise for a name that is too long.
    if os.path.exists(file) and not os.path.isfile(file):  # noqa: PTH110, PTH113 - reading a pipe would block
        raise BadInput(Problem("is no file", file=file))


def _tensors(source: Path, architecture: Architecture) -> dict[str, Tensor]:
    index = source / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        held = _json(index).get("weight_map")
        if not isinstance(held, dict) or not all(
            isinstance(file, str) for file in held.values()
        ):
            raise BadInput(
                Problem("weight_map does not say in which file each tensor is", file=index)
            )
        outside = [file for file in held.values() if file != Path(file).name]
        if outside:
            what = f"weight_map names {outside[0][:60]!a}"
            raise BadInput(Problem(what, "files of this folder, by their names", file=index))
        files = sorted({*held.values()})
    tensors: dict[str, Tensor] = {}
    for file in files:
        _check_file(source / file)
        try:
            tensors |= load_file(source / file)
        except (OSError, SafetensorError) as error:
            what = f"cannot be read as safetensors, the only supported format ({error})"
            raise BadInput(Problem(what, file=source / file)) from error
    for old, new in RENAMED.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    # Which a folder of the model without a head lacks.
    prefix = architecture.embedding.partition(".")[0]
    if not any(name.startswith(prefix) for name in tensors):
        tensors = {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}
    return tensors


def _values(
    architecture: Architecture, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return effective hyperparameters: those of config.json, and the table's defaults.

    If the head's weights differ from the embeddings, the head is not tied, whatever config.json says.
    """
    tied: dict[str, Any] = {}
    head = tensors.get(architecture.head)
    if head is not None and not torch.equal(head, tensors.get(architecture.embedding, head)):
        tied = {"tie_weights": False, "tie_scale": False}
    if architecture.head_bias:
        tied["head_bias"] = architecture.head_bias in tensors
    try:
        layout = {**config.get(LAYOUT_KEY, {})}
        read = architecture.values(config) | tied
        read |= {name: layout[name] for name in LAYOUT if name in layout}
        known = {name: TABLE[name].check(value) for name, value in read.items()}
        values = settled(settle_devices(Hyperparameters.of(known)).as_dict())
    except ValueError as error:
        raise BadInput(f"config.json: {error}") from error
    except (ArithmeticError, AttributeError, TypeError) as error:
        raise BadInput("config.json has a value of the wrong type") from error
    reason = why_not(ModelShape.named(values))
    if reason:
        raise BadInput(f"config.json describes a model that is not possible here: {reason}")
    return {name: values[name] for name in TABLE}


def _objective(values: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Return a model's objective: from our export, else inferred from its family and special tokens."""
    objective = settled_objective(Hyperparameters.of(values), "text")
    if values["family"] not in OBJECTIVES[objective].families:
        raise BadInput(
            f"config.json has objective {objective}, which family {values['family']} cannot learn"
        )
    # Without sentinel tokens for spans it can only predict one text from another.
    if objective == Span.name and sentinel(0) not in special:
        return PairsObjective.name
    return objective


def _weights(
    architecture: Architecture,
    shape: ModelShape,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    links = architecture.links(shape, config)
    missing = sorted(links.names - tensors.keys())
    if missing:
        raise BadInput(
            f"the folder lacks the tensor {missing[0]}, which {architecture.class_name} needs"
        )
    beside = re.compile("|".join((re.escape(architecture.head), *architecture.beside)))
    others = sorted(name for name in tensors.keys() - links.names if not beside.fullmatch(name))
    if others:
        raise BadInput(f"the folder has the tensor {others[0]}, which is not supported")
    return {link.ours: link.take(tensors) for link in links.links}


def _tokenizer(definition: Definition | None, shape: ModelShape) -> tuple[Tokenizer, str]:
    """Return the folder's tokenizer and ""; if it cannot be used, a tokenizer of plain ids and the reason."""
    why = "there is no tokenizer.json"
    if definition is not None:
        try:
            tokenizer = read_tokenizer(definition)
            if tokenizer.vocab_size <= shape.vocab_size:
                return tokenizer, ""
            n_tokens = several(tokenizer.vocab_size, "token")
            why = f"tokenizer.json has {n_tokens}, but the model only {shape.vocab_size:,}"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"tokenizer.json is not supported: {error}"
    return IdsTokenizer(shape.vocab_size), why


def _special(
    source: Path, config: Mapping[str, Any], definition: Definition | None, shape: ModelShape
) -> dict[str, int]:
    listed = (definition or {}).get("added_tokens")
    added = {
        token["content"]: token.get("id")
        for token in (listed if isinstance(listed, list) else ())
        if isinstance(token, dict) and isinstance(token.get("content"), str)
    }
    file = source / "tokenizer_config.json"
    named = _json(file) if file.exists() else {}

    def id_of(role: str) -> Any:
        content = named.get(f"{role}_token")
        if isinstance(content, dict):
            content = content.get("content")
        return added.get(str(content or ""))

    known = {key: value for key, value in config.items() if value is not None}
    end = known.get("eos_token_id", id_of("sep"))  # BERT's [SEP], and its [CLS]
    if isinstance(end, list) and end:
        end = end[0]
    pad, start = known.get("pad_token_id"), known.get("bos_token_id", id_of("cls"))
    if shape.of_family.reads_source:
        start = known.get("decoder_start_token_id", pad)
    ids: dict[str, Any] = {PAD: pad, BOS: start, EOS: end, MASK: id_of("mask")}
    for index in range(len(added)):
        ids[label(index)] = added.get(f"<|{label(index)}|>")
        ids[sentinel(index)] = added.get(
            f"<extra_id_{index}>", added.get(f"<|{sentinel(index)}|>")
        )
    return {
        name: number
        for name, number in ids.items()
        if isinstance(number, int) and 0 <= number < shape.vocab_size
    }
