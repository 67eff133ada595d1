"""Folders for `transformers`, written and read again without that package."""

import json
import shutil

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
from model.cases import legal_shapes
from safetensors.torch import load_file, save_file

from sweeplab.data.objectives import make_objective
from sweeplab.data.tokenizers import CharTokenizer
from sweeplab.errors import BadInput
from sweeplab.hf.architectures import ARCHITECTURES
from sweeplab.hf.folders import architecture_of, export_run, import_folder
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.model.layout import declared
from sweeplab.runs.generating import laid_out
from sweeplab.tracking.models import load_checkpoint


def rewritten(folder, **changed):
    """Change keys of a folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    return folder


@pytest.fixture
def gpt2(tmp_path):
    export_run(run_of(small(GPT2)), tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("index", range(len(EXPRESSIBLE)))
def test_what_was_written_reads_back_as_the_same_function(index, tmp_path):
    base, changed = EXPRESSIBLE[index]
    run = run_of(small(base, **changed), seed=index)
    architecture = export_run(run, tmp_path / "hf")
    found = import_folder(tmp_path / "hf", tmp_path / "run", "back")
    assert (found.family, found.tokenizer, found.without) == (base["family"], "byte", "")
    back = load_checkpoint(tmp_path / "run")
    batch = tokens_of(run.model.shape)
    ours = logits_of(run, *batch)
    assert ours.std() > 0.05
    torch.testing.assert_close(logits_of(back, *batch), ours, rtol=1e-4, atol=1e-5)
    assert back.special.items() >= run.special.items()
    again = architecture.config(back.values, {})
    written = json.loads((tmp_path / "hf/config.json").read_text())
    differing = {key for key in again if again[key] != written[key]}
    assert differing <= {"attention_bias", "mlp_bias", "scale_decoder_outputs"}


def test_every_legal_shape_is_expressed_or_refused_with_its_reason():
    n_expressed = n_refused = 0
    for shape in (*random_shapes(400), *legal_shapes()):
        try:
            architecture = architecture_of(shape)
        except BadInput as error:
            assert (
                len(error.problems) == 1
                and error.problems[0].allowed
                and "\n" not in str(error)
            )
            n_refused += 1
        else:
            config = architecture.config(Hyperparameters.of(vars(shape)), {})
            links = architecture.links(shape, config)
            assert {link.ours for link in links.links} == {
                weight.name for weight in declared(shape)
            }
            assert architecture.values(config)["family"] == shape.family
            n_expressed += 1
    assert n_expressed > 100 and n_refused > 800


@pytest.mark.parametrize(
    ("base", "changed", "said"),
    [
        (GPT2, {"positions": "alibi"}, "cannot express positions alibi; allowed: positions learned | sinusoidal"),
        (GPT2, {"n_kv_head": 1},
         "GPT2LMHeadModel cannot express n_kv_head 1; allowed: n_kv_head equal to n_head, because every"),
        (LLAMA, {"norm": "layernorm"}, "LlamaForCausalLM cannot express norm layernorm; allowed: norm rmsnorm"),
        (BERT, {"positions": "rotary", "norm": "rmsnorm", "activation": "swiglu"},
         "BertForMaskedLM cannot express positions rotary, norm rmsnorm, activation swiglu; allowed: positions"),
        (BERT, {"norm_position": "pre"}, "cannot express norm_position pre; allowed: norm_position post, because"),
        (LLAMA, {"attention": "local", "full_attention_interval": 2, "bias": False},
         "MistralForCausalLM cannot express full_attention_interval 2; allowed: full_attention_interval null, because"),
        (MIXTRAL, {"n_expert_active": 1}, "LlamaForCausalLM cannot express n_expert 3; allowed: n_expert 1, because"),
        (BART, {"norm_eps": 1e-6}, "BartForConditionalGeneration cannot express norm_eps 1e-06; allowed: norm_eps 1e"),
        (T5, {"bias": True}, "T5ForConditionalGeneration cannot express bias true; allowed: bias false, because"),
    ],
)  # fmt: skip
def test_what_no_class_can_express(base, changed, said, tmp_path):
    with pytest.raises(BadInput) as refused:
        export_run(run_of(small(base, **changed)), tmp_path / "hf")
    assert said in str(refused.value)
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mamba"}, "config.json has the unsupported model_type 'mamba'; allowed: gpt2 | qwen2 | "),
        ({"model_type": "gemma2"}, "config.json is of gemma2, whose attn_logit_softcapping caps attention scores: no"),
        ({"activation_function": "silu"},
         "config.json has activation_function 'silu', which is not supported as activation"),
        ({"scale_attn_by_inverse_layer_idx": True},
         "config.json has scale_attn_by_inverse_layer_idx True, which is not supported"),
        ({"n_embd": "wide"}, "config.json: n_embd is 'wide'; allowed: a whole number, at least 1, at most 65,536"),
        ({"sweeplab": {"objective": "masked"}}, "config.json has objective masked, which family decoder cannot learn"),
        ({"sweeplab": 5}, "config.json has a value of the wrong type"),
        ({"activation_function": ["gelu"]}, "config.json has a value of the wrong type"),
        ({"n_head": None}, "config.json lacks n_head"),
        ({"n_embd": 12}, "the sizes of transformer.wte.weight [262, 8] do not match config.json"),
        ({"n_layer": 3}, "the folder lacks the tensor transformer.h.2.attn.c_attn.bias, which GPT2LMHeadModel needs"),
        ({"n_layer": 1}, "the folder has the tensor transformer.h.1.attn.c_attn.bias, which is not supported"),
    ],
)  # fmt: skip
def test_folders_that_no_run_can_be_made_of(changed, said, gpt2, tmp_path):
    with pytest.raises(BadInput) as refused:
        import_folder(rewritten(gpt2, **changed), tmp_path / "run", "bad")
    assert said in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there_or_not_whole(gpt2, tmp_path):
    with pytest.raises(BadInput, match=r"none/config.json: No such file"):
        import_folder(tmp_path / "none", tmp_path / "run", "bad")
    (gpt2 / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(
        BadInput,
        match=r"model.safetensors: cannot be read as safetensors, the only supported format",
    ):
        import_folder(gpt2, tmp_path / "run", "bad")
    (gpt2 / "config.json").write_text("[")
    with pytest.raises(BadInput, match=r"config.json: not JSON"):
        import_folder(gpt2, tmp_path / "run", "bad")


@pytest.mark.parametrize(
    "held",
    [
        [],
        {"a": 5},
        None,
        *(
            {"a": name}
            for name in ("/elsewhere.safetensors", "../elsewhere.safetensors", "a/../../b")
        ),
    ],
)
def test_an_index_that_names_no_files_or_files_elsewhere(held, gpt2, tmp_path):
    shutil.copyfile(gpt2 / "model.safetensors", gpt2.parent / "elsewhere.safetensors")
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    with pytest.raises(
        BadInput,
        match=r"index.json: weight_map (does not say|names '.*'; allowed: files of this folder)",
    ):
        import_folder(gpt2, tmp_path / "run", "bad")


@pytest.mark.parametrize("added", [5, ["<s>"], [{"content": []}], [{"id": 3}], {"a": 1}])
def test_a_tokenizer_of_another_form_leaves_ids(added, gpt2, tmp_path):
    file = gpt2 / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"added_tokens": added}))
    found = import_folder(gpt2, tmp_path / "run", "odd")
    assert found.tokenizer == "ids" and found.without.startswith(
        "tokenizer.json is not supported: "
    )


def test_without_tokens_for_spans_one_text_is_found_from_another(tmp_path):
    """As a model that was trained on pairs elsewhere, or came without its tokenizer."""
    export_run(run_of(small(T5)), tmp_path / "t5")
    rewritten(tmp_path / "t5", decoder_start_token_id=258, eos_token_id=1, pad_token_id=258)
    config = json.loads((tmp_path / "t5/config.json").read_text())
    config.pop("sweeplab")
    (tmp_path / "t5/config.json").write_text(json.dumps(config))
    import_folder(tmp_path / "t5", tmp_path / "spans", "spans")
    assert load_checkpoint(tmp_path / "spans").values.objective == "span"
    (tmp_path / "t5/tokenizer.json").unlink()
    import_folder(tmp_path / "t5", tmp_path / "pairs", "pairs")
    run = load_checkpoint(tmp_path / "pairs")
    assert run.values.objective == "pairs"
    prompt = laid_out(run, "5 6")
    assert (prompt.start, prompt.source, prompt.end) == ([258], [5, 6], 1)


def test_what_hides_a_token_is_the_same_to_read_and_to_evaluate(tmp_path):
    """BERT's own ids lie among those of its text."""
    export_run(run_of(small(BERT)), tmp_path / "bert")
    rewritten(tmp_path / "bert", bos_token_id=None, eos_token_id=None)
    added = [
        {"id": 103, "content": "[MASK]"},
        {"id": 101, "content": "[CLS]"},
        {"id": 102, "content": "[SEP]"},
    ]
    (tmp_path / "bert/tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    named = {"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}}
    (tmp_path / "bert/tokenizer_config.json").write_text(json.dumps(named))
    import_folder(tmp_path / "bert", tmp_path / "run", "run")
    back = load_checkpoint(tmp_path / "run")
    assert (back.special["bos"], back.special["eos"]) == (101, 102)
    objective = make_objective(
        np.arange(200, dtype=np.uint16), back.values.replace(mask_share=0.5), back.own_special
    )
    assert objective.special.ids == back.special and back.special["mask"] == 103
    batch = objective.training(0, 0)
    assert (
        batch.inputs[(batch.targets >= 0) & (batch.inputs != batch.targets)] == 103
    ).mean() > 0.7


def test_nothing_is_replaced_unasked(gpt2, tmp_path):
    run = run_of(small(GPT2), seed=1)
    with pytest.raises(BadInput, match="already has a model; allowed: --force to replace it"):
        export_run(run, gpt2)
    import_folder(gpt2, tmp_path / "run", "first")
    export_run(run, gpt2, force=True)
    with pytest.raises(BadInput, match="there is already a run; allowed: --name"):
        import_folder(gpt2, tmp_path / "run", "second")
    import_folder(gpt2, tmp_path / "run", "second", force=True)
    assert torch.equal(load_checkpoint(tmp_path / "run").model.weights["token_embedding"],
                       run.model.weights["token_embedding"])  # fmt: skip


def test_older_names_and_parts_of_a_folder(gpt2, tmp_path):
    """The first GPT-2's own file has no prefix and has masks; larger ones come in several files."""
    tensors = load_file(gpt2 / "model.safetensors")
    older = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    older |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 10, 10) for layer in range(2)}
    names = sorted(older)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: older[name] for name in held}, gpt2 / file)
    weight_map = {name: file for file, held in parts.items() for name in held}
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    import_folder(gpt2, tmp_path / "run", "older")
    (gpt2 / "model.safetensors").unlink()
    back = load_checkpoint(tmp_path / "run").model.weights["blocks.1.attention.qkv.weight"]
    assert torch.equal(back, tensors["transformer.h.1.attn.c_attn.weight"])


def test_a_tokenizer_that_we_lack_leaves_ids(gpt2, tmp_path):
    (gpt2 / "tokenizer.json").unlink()
    found = import_folder(gpt2, tmp_path / "run", "bare")
    assert (found.tokenizer, found.without) == ("ids", "there is no tokenizer.json")
    tokenizer = load_checkpoint(tmp_path / "run").tokenizer
    assert tokenizer.decode(tokenizer.encode("12 7\n261")) == "12 7 261"
    for text, word in (
        ("12 seven", "'seven' at 3"),
        ("262", "'262' at 0"),
        ("-1", "'-1' at 0"),
    ):
        with pytest.raises(ValueError, match=f"{word} is not a token id from 0 to 261"):
            tokenizer.encode(text)


def test_a_t5_without_room_for_a_span(tmp_path):
    export_run(run_of(small(T5)), tmp_path / "t5")
    with pytest.raises(
        BadInput, match=r"config.json: block_size 2 is too small for spans: at least 3"
    ):
        import_folder(rewritten(tmp_path / "t5", n_positions=2), tmp_path / "run", "bad")


def test_half_a_character_cannot_be_written(tmp_path):
    tokenizer = CharTokenizer.train("ab\ud800")
    with pytest.raises(
        BadInput, match=r"tokenizer char: character .* is half of a surrogate pair, not text"
    ):
        export_run(run_of(small(GPT2), tokenizer=tokenizer), tmp_path / "hf")


def test_every_architecture_has_runs_here():
    written = {
        architecture_of(small(base, **changed)).model_type for base, changed in EXPRESSIBLE
    }
    assert written == ARCHITECTURES.keys() - {"roberta", "distilbert", "mt5"}, (
        "what these express, BERT or T5 does, too"
    )


def test_barts_head_has_a_bias_where_its_file_has_one(tmp_path):
    for head_bias in (True, False):
        run = run_of(small(BART, head_bias=head_bias))
        export_run(run, tmp_path / "bart", force=True)
        assert (
            "final_logits_bias" in load_file(tmp_path / "bart/model.safetensors")
        ) is head_bias
        import_folder(tmp_path / "bart", tmp_path / "run", "back", force=True)
        assert load_checkpoint(tmp_path / "run").model.shape.has_head_bias is head_bias
    rewritten(tmp_path / "bart", decoder_ffn_dim=7)
    with pytest.raises(
        BadInput, match="decoder_ffn_dim 7, which differs from encoder_ffn_dim; allowed: 32"
    ):
        import_folder(tmp_path / "bart", tmp_path / "run", "back", force=True)
