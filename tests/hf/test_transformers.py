"""Against the real package: folders written here open there and compute the same, and the other way round.

Models are made there from configurations with random weights: nothing is downloaded.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hf.models import (
    BART,
    BERT,
    EXPRESSIBLE,
    GPT2,
    LLAMA,
    MIXTRAL,
    T5,
    logits_of,
    random_shapes,
    run_of,
    small,
    tokens_of,
)
from trained import run_in

from sweeplab.data.tokenizers import TOKENIZERS
from sweeplab.errors import BadInput
from sweeplab.hf.folders import export_run, import_folder
from sweeplab.runs.run import Run
from sweeplab.tracking.models import load_checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
pytestmark = pytest.mark.slow  # its import alone takes seconds

AUTO = {
    "decoder": transformers.AutoModelForCausalLM,
    "encoder": transformers.AutoModelForMaskedLM,
    "encoder_decoder": transformers.AutoModelForSeq2SeqLM,
}
TEXT = "naïve café, 中文 \U0001f600\r\n\te\u0301 <|x|> don't\n"


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    transformers.logging.disable_progress_bar()


def opened(folder, shape):
    """Open a folder as a user would; nothing may be missing there, or left over."""
    # Its grouped products, on a CPU, are only for sizes that are multiples of four.
    plain = {"experts_implementation": "eager"} if shape.n_expert > 1 else {}
    model, report = AUTO[shape.family].from_pretrained(
        folder, output_loading_info=True, **plain
    )
    assert not any(
        report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    return model.eval()


@torch.no_grad()
def theirs(model, inputs, source=None, **masks):
    """Return its logits [B, T, V]."""
    if source is None:
        found = model(inputs, **masks)
        return found.prediction_logits if "prediction_logits" in found else found.logits
    return model(input_ids=source, decoder_input_ids=inputs, **masks).logits


def check_same(run, model):
    """Compare logits to 1e-5, in parts of the largest where that is above one; return the largest difference."""
    batch = tokens_of(run.model.shape)
    ours, places = logits_of(run, *batch), {}
    # Else a padding token among the tokens has no position.
    if model.config.model_type == "roberta":
        first = model.config.pad_token_id + 1
        places["position_ids"] = torch.arange(first, first + batch[0].shape[1])[None]
    difference = float((ours - theirs(model, *batch, **places)).abs().max()) / max(
        1.0, float(ours.abs().max())
    )
    assert difference <= 1e-5
    assert ours.std() > 0.01
    return difference


@pytest.mark.parametrize("index", range(len(EXPRESSIBLE)))
def test_a_run_computes_the_same_there(index, tmp_path):
    base, changed = EXPRESSIBLE[index]
    run = run_of(small(base, **changed), seed=index)
    architecture = export_run(run, tmp_path)
    model = opened(tmp_path, run.model.shape)
    assert type(model).__name__ == architecture.class_name
    check_same(run, model)


def test_any_legal_run_computes_the_same_there_or_is_refused(tmp_path):
    n_same = 0
    for index, shape in enumerate(random_shapes(150, seed=1)):
        run = run_of(shape, seed=index)
        try:
            export_run(run, tmp_path / str(index))
        except BadInput as error:
            assert " cannot express " in str(error) and "; allowed: " in str(error)
        else:
            check_same(run, opened(tmp_path / str(index), shape))
            n_same += 1
    assert n_same > 40


GPT2_SIZES = {"vocab_size": 50, "n_positions": 12, "n_embd": 24, "n_layer": 2, "n_head": 3}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
}
BERT_SIZES = {**SIZES, "max_position_embeddings": 12}
DISTILBERT_SIZES = {
    "vocab_size": 50, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 12,
}  # fmt: skip
T5_SIZES = {
    "vocab_size": 50,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 20,
    "num_layers": 2,
    "num_heads": 3,
}
BART_SIZES = {
    "vocab_size": 50, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 12,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
}  # fmt: skip
NO_IDS = {"bos_token_id": None, "eos_token_id": None}
# Their defaults, but for what is said: eps, activations and head as their models were published with.
CONFIGS = {
    "gpt2": ("GPT2LMHeadModel", {**GPT2_SIZES, **NO_IDS}),
    "gpt2 exact": ("GPT2LMHeadModel", {**GPT2_SIZES, **NO_IDS, "activation_function": "gelu", "n_inner": 17}),
    "gpt2 untied": ("GPT2LMHeadModel", {**GPT2_SIZES, **NO_IDS, "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", SIZES),
    "llama grouped": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama biases": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "attention_bias": True}),
    "llama base": ("LlamaForCausalLM", {
        **SIZES, "mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    }),
    "bert": ("BertForMaskedLM", BERT_SIZES),
    "bert untied": ("BertForMaskedLM", {**BERT_SIZES, "tie_word_embeddings": False, "hidden_act": "relu"}),
    "bert sentences": ("BertForPreTraining", BERT_SIZES),
    "mistral": ("MistralForCausalLM", {**SIZES, "num_key_value_heads": 2, "sliding_window": 4, "head_dim": 6}),
    "mistral whole": ("MistralForCausalLM", {**SIZES, "num_key_value_heads": 4, "sliding_window": None, "head_dim": 8}),
    "roberta": ("RobertaForMaskedLM", {**BERT_SIZES, "pad_token_id": 1, "type_vocab_size": 1, **NO_IDS}),
    "roberta untied": ("RobertaForMaskedLM", {**BERT_SIZES, "pad_token_id": 3, "tie_word_embeddings": False, **NO_IDS}),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT_SIZES),
    "distilbert untied": ("DistilBertForMaskedLM", {
        **DISTILBERT_SIZES, "activation": "relu", "tie_word_embeddings": False,
    }),
    "mixtral": ("MixtralForCausalLM", {**SIZES, "num_key_value_heads": 2, "num_local_experts": 5}),
    "mixtral windows": ("MixtralForCausalLM", {
        **SIZES, "num_key_value_heads": 4, "num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 4,
    }),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SIZES, **NO_IDS, "hidden_size": 32}),
    "gpt_neox in turn": ("GPTNeoXForCausalLM", {
        **SIZES, **NO_IDS, "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    }),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "num_key_value_heads": 2}),
    "qwen2 tied": ("Qwen2ForCausalLM", {**SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 8}),
    "qwen3 biases": ("Qwen3ForCausalLM", {
        **SIZES, "num_key_value_heads": 1, "attention_bias": True, "rms_norm_eps": 1e-3,
    }),
    "mt5": ("MT5ForConditionalGeneration", T5_SIZES),
    "bart": ("BartForConditionalGeneration", BART_SIZES),
    "bart scaled": ("BartForConditionalGeneration", {
        **BART_SIZES, "scale_embedding": True, "activation_function": "relu", "decoder_layers": 1,
    }),
    "t5": ("T5ForConditionalGeneration", T5_SIZES),
    "t5 1.1": ("T5ForConditionalGeneration", {
        **T5_SIZES, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3,
    }),
    "t5 buckets": ("T5ForConditionalGeneration", {
        **T5_SIZES, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    }),
}  # fmt: skip


def test_a_classifier_keeps_its_labels(tmp_path):
    own = {"family": "encoder", "norm_position": "post", "embedding_norm": True}
    run_in(tmp_path / "run", kind="labels", n_labels=3, labels=("bad", "good", "odd"), **own)
    run = load_checkpoint(tmp_path / "run")
    export_run(run, tmp_path / "there")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "there")
    assert config.id2label == {0: "bad", 1: "good", 2: "odd"} and config.num_labels == 3
    assert config.label2id == {"bad": 0, "good": 1, "odd": 2}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    model = opened(tmp_path / "there", run.model.shape)
    for text in ("the cat", "a dog barks"):
        read = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            shares = (
                model(torch.tensor([read])).logits[0, 0, -config.num_labels :].softmax(dim=-1)
            )
        found = dict(zip(config.id2label.values(), shares.tolist(), strict=True))
        (ours,) = Run.of(run).predict([text])
        assert found == pytest.approx(ours["probabilities"], abs=1e-5)
        assert config.id2label[int(shares.argmax())] == ours["label"]


def made(class_name, **config):
    """Make a model there with the weights that the package draws."""
    kind = getattr(transformers, class_name)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return kind(kind.config_class(**config)).eval()


def planted(class_name, **config):
    """Make a model there with random weights, large enough for every part to matter."""
    model, generator = made(class_name, **config), torch.Generator().manual_seed(3)
    biases = (buffer for name, buffer in model.named_buffers() if name == "final_logits_bias")
    with torch.no_grad():
        for parameter in (*model.parameters(), *biases):
            start = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(start + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_of_theirs_computes_the_same_here_and_back_there(name, tmp_path):
    """With -s, print the largest differences of logits: of a model there and here, and there after both ways."""
    class_name, config = CONFIGS[name]
    for model, most in (
        (planted(class_name, **config), 1e-5),
        (made(class_name, **config), 1e-6),
    ):
        model.save_pretrained(tmp_path / "theirs")
        import_folder(tmp_path / "theirs", tmp_path / "run", "run", force=True)
        run = load_checkpoint(tmp_path / "run")
        export_run(run, tmp_path / "back", force=True)
        back = opened(tmp_path / "back", run.model.shape)
        assert type(back).__name__ == class_name.replace(
            "BertForPreTraining", "BertForMaskedLM"
        )
        here, there = check_same(run, model), check_same(run, back)
        print(f"| {name} | {class_name} | {here:.1e} | {there:.1e} |")
        assert max(here, there) <= most


@pytest.mark.parametrize(
    ("base", "padded"),
    [(BERT, "lengths"), (T5, "source_lengths"), (BART, "source_lengths")],
    ids=["bert", "t5", "bart"],
)
def test_padding_is_unseen_there_too(base, padded, tmp_path):
    run, lengths = run_of(small(base)), torch.tensor([4, 7])
    export_run(run, tmp_path)
    inputs, source = tokens_of(run.model.shape)
    ours = logits_of(run, inputs, source, **{padded: lengths})
    seen = torch.arange((inputs if source is None else source).shape[1]) < lengths[:, None]
    found = theirs(
        opened(tmp_path, run.model.shape), inputs, source, attention_mask=seen.long()
    )
    counted = seen if source is None else torch.ones_like(inputs, dtype=torch.bool)
    torch.testing.assert_close(ours[counted], found[counted], rtol=1e-5, atol=1e-5)
    whole = logits_of(run, inputs, source)
    assert not torch.allclose(ours[0, :4], whole[0, :4], atol=1e-3)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_open_there_and_feed_the_model(name, tmp_path):
    tokenizer = TOKENIZERS[name].train(TEXT * 3)
    run = run_of(
        small(GPT2, vocab_size=tokenizer.vocab_size, block_size=64), tokenizer=tokenizer
    )
    export_run(run, tmp_path)
    ids = tokenizer.encode(TEXT).tolist()
    for kind in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
        found = kind.from_pretrained(tmp_path)
        assert found(TEXT)["input_ids"] == ids and found.decode(ids) == TEXT
        assert len(found) == tokenizer.vocab_size
        model = opened(tmp_path, run.model.shape)
        with torch.no_grad():
            logits = model(**found(TEXT, return_tensors="pt")).logits
        ours = logits_of(run, torch.tensor([ids]))
        torch.testing.assert_close(logits, ours, rtol=1e-5, atol=1e-5)


def test_special_tokens_are_told_there(tmp_path):
    encoder, pairs = run_of(small(BERT)), run_of(small(T5))
    pairs = replace(pairs, values=pairs.values.replace(objective="pairs"))
    export_run(encoder, tmp_path / "bert")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert found("a<|mask|>")["input_ids"] == [97, 261] and found.mask_token_id == 261
    export_run(pairs, tmp_path / "t5")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "t5")
    assert pairs.special == {"pad": 258, "bos": 259, "eos": 260, "mask": 261}
    assert (found.pad_token_id, found.bos_token_id, found.eos_token_id) == (258, 259, 260)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "t5")
    assert (config.decoder_start_token_id, config.pad_token_id) == (259, 258)


@pytest.mark.parametrize(
    "base", [GPT2, LLAMA, MIXTRAL, T5, BART], ids=["gpt2", "llama", "mixtral", "t5", "bart"]
)
def test_their_generate_goes_on_as_ours_would(base, tmp_path):
    run = run_of(small(base, block_size=16))
    export_run(run, tmp_path)
    model, first = opened(tmp_path, run.model.shape), torch.tensor([[5, 7, 9]])
    source = first if run.model.shape.of_family.reads_source else None
    ours = first if source is None else torch.tensor([[run.special["bos"]]])
    n_before = ours.shape[1]
    mask = torch.ones_like(first)
    # What a checker would hear of first: a generation_config.json that contradicts itself.
    asked = {
        "do_sample": False,
        "temperature": None,
        "top_k": None,
        "top_p": None,
        "max_new_tokens": 6,
    }
    found = model.generate(first, attention_mask=mask, **asked)[0, n_before:]
    for _ in range(len(found)):
        ours = torch.cat([ours, logits_of(run, ours, source)[:, -1:].argmax(dim=-1)], dim=1)
    np.testing.assert_array_equal(found.numpy(), ours[0, n_before:].numpy())
    config = json.loads((tmp_path / "generation_config.json").read_text())
    values = run.values
    assert (config["temperature"], config["top_k"]) == (values.temperature, values.top_k)
