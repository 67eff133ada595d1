"""`export-hf` and `import-hf`: a study's run goes out as a folder, and comes in again under a name."""

import json
from pathlib import Path

import pytest
from trained import run_in

from sweeplab.hf.mapping import LAYOUT
from sweeplab.tracking.loading import load_checkpoint

OF_T5 = {"positions": "relative", "norm": "rmsnorm", "bias": False, "activation": "relu"}
OF_BERT = {"norm_position": "post", "embedding_norm": True}
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def test_out_and_in_again_it_writes_the_same_text(cli, lab: Path) -> None:
    said = cli("export-hf", "tiny", "out")
    assert said.code == 0
    assert (
        said.out
        == "wrote out, a GPT2LMHeadModel\nnext: transformers.GPT2LMHeadModel.from_pretrained('out')\n"
    )
    assert tuple(sorted(each.name for each in Path("out").iterdir())) == FILES
    said = cli("import-hf", "out", "--name", "back")
    assert said.code == 0
    assert said.out.startswith(f"wrote {lab}/imported/back: decoder, ") and said.err == ""
    texts = [
        cli("generate", name, "--prompt", "import ", "--max-new-tokens", "20").out
        for name in ("tiny", "back")
    ]
    assert texts[0] == texts[1] != ""
    again = json.loads(cli("export-hf", "back", "again", "--json").out)
    assert again == {"folder": "again", "class": "GPT2LMHeadModel"}
    assert Path("again/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    assert Path("again/tokenizer.json").read_bytes() == Path("out/tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("changed", "prompt"),
    [
        ({"family": "encoder_decoder", "kind": "pairs", **OF_T5}, "the cat"),
        ({"kind": "pairs"}, "the cat"),
        ({"family": "encoder", "kind": "pairs", **OF_BERT}, "the[MASK][MASK]"),
        ({"family": "encoder_decoder", "block_size": 64, "mask_share": 0.3, **OF_T5}, "the[MASK]cat[MASK]s"),
    ],
)
def test_out_and_in_again_it_reads_a_prompt_as_before(cli, folder: Path, changed: dict, prompt: str) -> None:
    run_in(folder / "one", **changed)
    assert cli("export-hf", "one", "hf").code == cli("import-hf", "hf", "--name", "two").code == 0
    texts = [cli("generate", run, "--prompt", prompt, "--greedy").out for run in ("one", "two")]
    assert texts[0] == texts[1] != "\n"
    one, two = (load_checkpoint(folder / each) for each in ("one", "lab/imported/two"))
    assert two.special.items() >= one.special.items()
    assert [getattr(two.values, name) for name in LAYOUT] == [getattr(one.values, name) for name in LAYOUT]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["out", "--name", "../../esc"],
            "'../../esc' cannot be a run's name; allowed: --name of a letter or digit, then letters, digits",
        ),
        (["out", "--name", ".."], "'..' cannot be a run's name"),
        (["out", "--name", "tiny"], "'tiny' is a study's name and opens its best run; allowed: --name with"),
    ],
)
def test_a_name_that_could_not_be_opened_is_refused(cli, lab: Path, arguments: list[str], said: str) -> None:
    cli("export-hf", "tiny", "out")
    told = cli("import-hf", *arguments)
    assert (told.code, told.out) == (2, "") and told.err.startswith(f"error: {said}")
    assert told.err.count("\n") == 1 and not (lab / "imported").exists()
