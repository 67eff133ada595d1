"""Write a run as a folder that the `from_pretrained` of `transformers` opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from sweeplab.data.prompts import BOS, EOS, MASK, PAD, sentinel
from sweeplab.data.tokenizers import IdsTokenizer
from sweeplab.errors import BadInput, Problem
from sweeplab.files import write_whole
from sweeplab.hf.architectures import ARCHITECTURES, LAYOUT, LAYOUT_KEY, Architecture
from sweeplab.hf.tokenizers import Definition, write_tokenizer
from sweeplab.model.shape import ModelShape
from sweeplab.tracking.loading import LoadedRun


def architecture_of(shape: ModelShape) -> Architecture:
    """Return the class that expresses a model.

    Raises:
        BadInput: none does; says which choices the closest one of its family cannot express, and what it can.
    """
    of_family = (each for each in ARCHITECTURES.values() if each.fixed["family"] == shape.family)
    unmet = {each.model_type: each.unmet(shape) for each in of_family}
    nearest = min(unmet, key=lambda name: len(unmet[name]))
    found = ARCHITECTURES[nearest]
    if not unmet[nearest]:
        return found
    names = dict.fromkeys(name for each in unmet[nearest] for name in sorted(each.names))
    given = ", ".join(f"{name} {str(getattr(shape, name)).lower()}" for name in names)
    allowed = "; ".join(each.text for each in unmet[nearest])
    raise BadInput(Problem(f"{found.class_name} cannot express {given}", allowed))


def export_run(run: LoadedRun, folder: Path, force: bool = False) -> Architecture:
    """Write config.json, model.safetensors, generation_config.json, tokenizer.json and tokenizer_config.json.

    Raises:
        BadInput: no class expresses the run, or the folder holds a model and is not to be replaced.
    """
    architecture = architecture_of(run.model.shape)
    if (folder / "config.json").exists() and not force:
        raise BadInput(Problem("the folder holds a model already", "--force to replace it", file=folder))
    tokens = _token_ids(run)
    config = (
        architecture.config(run.values) | tokens | {LAYOUT_KEY: {name: run.values[name] for name in LAYOUT}}
    )
    links, weights = architecture.links(run.model.shape, config), run.model.weights
    tensors = dict(links.constant)
    for link in links.found:
        tensors |= link.give(weights[link.ours])
    written = {
        **_tokenizer(run),
        "generation_config.json": tokens | _sampling(run),
        "config.json": config,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "model.safetensors", save(tensors, {"format": "pt"}))
        for name, content in written.items():
            text = json.dumps(content, indent=2, ensure_ascii=False)
            write_whole(folder / name, f"{text}\n".encode())
    except OSError as error:
        raise BadInput(Problem(error.strerror or str(error), file=folder)) from error
    return architecture


def _token_ids(run: LoadedRun) -> dict[str, int | None]:
    """Return the special tokens that config.json names; what a target starts with there pads as well."""
    special = run.special
    found = {f"{name}_token_id": special.get(name) for name in (BOS, EOS, PAD)}
    if run.model.shape.of_family.reads_source:
        found["decoder_start_token_id"] = special.get(BOS)
        found["pad_token_id"] = special.get(PAD, special.get(BOS))
    return found


def _tokenizer(run: LoadedRun) -> dict[str, Definition]:
    """Return the tokenizer's two files; a run of bare ids has none."""
    if isinstance(run.tokenizer, IdsTokenizer):
        return {}
    definition = write_tokenizer(run.tokenizer, run.special, run.model.shape.vocab_size)
    written = {number: content for content, number in definition["model"]["vocab"].items()}
    special = run.special
    named = {f"{name}_token": written[special[name]] for name in (BOS, EOS, PAD, MASK) if name in special}
    sentinels = [
        written[special[name]] for index in range(len(special)) if (name := sentinel(index)) in special
    ]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": run.model.shape.block_size,
        # Without it types of tokens are among them, which GPT-2 would take for more tokens.
        "model_input_names": ["input_ids", "attention_mask"],
        **named,
        **({"extra_special_tokens": sentinels} if sentinels else {}),
    }
    return {"tokenizer.json": definition, "tokenizer_config.json": config}


def _sampling(run: LoadedRun) -> dict[str, Any]:
    """Return how the run's hyperparameters say that it is to be sampled from; 0 and 1 switch off there."""
    if run.model.shape.of_family.transforms:
        return {}
    values = run.values
    return {
        "do_sample": True,
        "temperature": values["temperature"],
        "top_k": values["top_k"] or 0,
        "top_p": values["top_p"] or 1.0,
        "max_new_tokens": values["max_new_tokens"],
    }
