"""`export-hf` and `import-hf`: a study's run goes out as a folder, and comes in again under a name."""

from pathlib import Path

import pytest
from trained import run_in

from sweeplab.hf.mapping import LAYOUT
from sweeplab.tracking.models import load_checkpoint

OF_T5 = {"positions": "relative", "norm": "rmsnorm", "bias": False, "activation": "relu"}
OF_BERT = {"norm_position": "post", "embedding_norm": True}
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def test_out_and_in_again_it_writes_the_same_text(cli, json_of, lab):
    out, again = Path("out"), Path("again")
    assert "GPT2LMHeadModel.from_pretrained('out')" in cli("export-hf", "tiny", "out").out
    assert tuple(sorted(each.name for each in out.iterdir())) == FILES
    assert cli("import-hf", "out", "--name", "back").out.startswith(
        f"wrote {lab}/imported/back: decoder, "
    )
    prompt = ("--prompt", "import ", "--max-new-tokens", "20")
    texts = [cli("generate", name, *prompt).out for name in ("tiny", "back")]
    assert texts[0] == texts[1] != ""
    said = json_of("export-hf back again")
    assert said == {"folder": "again", "class": "GPT2LMHeadModel"}
    for name in ("model.safetensors", "tokenizer.json"):
        assert (again / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.parametrize(
    ("changed", "prompt"),
    [
        ({"family": "encoder_decoder", "kind": "pairs", **OF_T5}, "the cat"),
        ({"kind": "pairs"}, "the cat"),
        ({"family": "encoder", "kind": "pairs", **OF_BERT}, "the[MASK][MASK]"),
        (
            {"family": "encoder_decoder", "block_size": 64, "mask_share": 0.3, **OF_T5},
            "the[MASK]cat[MASK]s",
        ),
    ],
)
def test_out_and_in_again_it_reads_a_prompt_as_before(cli, folder, changed, prompt):
    run_in(folder / "one", **changed)
    assert (
        cli("export-hf", "one", "hf").code == cli("import-hf", "hf", "--name", "two").code == 0
    )
    texts = [cli("generate", run, "--prompt", prompt, "--greedy").out for run in ("one", "two")]
    assert texts[0] == texts[1] != "\n"
    one, two = (load_checkpoint(folder / each) for each in ("one", "lab/imported/two"))
    assert two.special.items() >= one.special.items()
    assert [getattr(two.values, name) for name in LAYOUT] == [
        getattr(one.values, name) for name in LAYOUT
    ]


def test_a_name_that_could_not_be_opened_is_refused(cli, lab):
    cli("export-hf", "tiny", "out")
    for name, why in (
        ("../../esc", "cannot be a run's name"),
        ("..", "cannot be"),
        ("tiny", "a study's name"),
    ):
        said = cli("import-hf", "out", "--name", name)
        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
        assert said.err.startswith(f"error: '{name}' ") and why in said.err
    assert not (lab / "imported").exists()
