"""What every command refuses, in which words: one line, exit 2, nothing printed beside it, and nothing changed."""

import os
import shlex
import shutil

import numpy as np
import pytest
from cli.conftest import STUDY, contents
from hf.models import GPT2, run_of, small
from law_tables import write_rows, write_table
from trained import run_in

from sweeplab.cli import MOVED
from sweeplab.data.tokenizers import ByteTokenizer, IdsTokenizer
from sweeplab.runs import open_run
from sweeplab.train.checkpoint import write_checkpoint

COLUMNS = "--columns params=N,tokens=D,loss=val"
NO_STUDY = "no study 'tny' in {lab}; allowed: tiny; did you mean 'tiny'?"
NO_FILE = "No such file"
LONG = "a" * 300
# A command, and the beginning or a part of what it says, by the lab with the finished study `tiny`.
REFUSED = [
    ("studdy", "sweeplab has no command 'studdy'"),
    ("study pla tiny.yaml", "sweeplab has no command 'pla'; did you mean 'sweeplab plan'?"),
    # Commands that went are answered by the one to use now, which exists.
    *((old, f"sweeplab {old} is now: {new}") for old, new in MOVED.items()),
    ("data hf://datasets/owner/texts", "no file"),
    ("study init new --data s3://bucket/notes.txt", "no file"),
    ("import-hf hf://gpt2", "hf:/gpt2/config.json: No such file or directory"),
    *((f"study {name} tny", NO_STUDY) for name in ("show", "watch", "stop", "pause", "resume", "extend")),
    *((f"study {name} tny", NO_STUDY) for name in ("rm", "doctor", "best", "confirm", "export", "publish")),
    *((f"study {name}", NO_STUDY) for name in ("enqueue tny learning_rate=1", "rename tny new")),
    *((f"{words}", NO_STUDY) for words in ("study diff tiny tny", "report tny", "diff tiny tny --page")),
    *((words, NO_STUDY) for words in ("evaluate tiny --study tny", "laws fit tiny,tny", "laws fit tny")),
    ("dashboard tny", NO_STUDY),
    *((words, "did you mean 'tiny'") for words in ("plan tny", "run tny", "ui tny", "doctor tny", "evaluate tny")),
    ("show fresh.yaml", "no study 'fresh' in {lab} yet; sweeplab run fresh runs it"),
    ("run nowhere.yaml", f"nowhere.yaml: {NO_FILE}"),
    ("plan tiny.yaml -o beta1=0.9", "; did you mean 'betas'?\n"),
    ("laws predict tiny --at n_layer=2", "--at lacks n_embd, which the grid of tiny has; allowed: n_embd=16"),
    ("laws predict tiny --at n_ebd=2", "--at n_ebd=2: no law of tiny says what that costs"),
    ("laws predict tiny --at n_embd=33", "no cell meets 'n_embd % n_head == 0' where n_embd is 33"),
    ("laws predict tiny --at n_embd=32 --seal", "there is no loss to seal"),
    ("run tiny.yml", f"tiny.yml: {NO_FILE} or directory; did you mean 'tiny.yaml'?"),
    ("run .", ".: this is a folder; `sweeplab init NAME --data .` writes a study of its texts"),
    ("plan short.txt", "short.txt: this is a text; `sweeplab init NAME --data short.txt` writes a study of it"),
    ("run tiny.yaml --name a/b", "--name a/b: name is \"a/b\""),
    ("run tiny.yaml --name=--help", "allowed: a letter or digit, then letters"),
    ("show tiny --lab lab --lab other", "--lab is given twice"),
    ("study rename tiny tiny --yes", "studies/tiny exists already; give another name"),
    ("study rename tiny a/b --yes", "--name a/b: name is \"a/b\""),
    ("study rm tiny", "move tiny (runs: 4 complete) to the trash? --yes confirms it"),
    # What a study that has ended is told.
    ("study stop tiny", "study tiny is not running: it has all of its trials; sweeplab extend tiny"),
    ("study extend tiny", "nothing to extend by; allowed: --trials-per-cell N, --time such as 2h"),
    ("study extend tiny --time soon", "budget.time=soon: "),
    ("study extend tiny --trials-per-cell 0", "budget.trials_per_cell=0: "),
    ("study enqueue tiny learning_rate=fast", 'learning_rate is "fast"; allowed: a number, above 0'),
    ("stop tiny/0", "2 cells of study tiny have a trial 0; name one with --cell"),
    ("stop tiny/n_embd=9/0", "study tiny has no cell 'n_embd=9'; allowed: n_embd=8, n_embd=16"),
    ("stop tiny/n_embd=8/1", "trial 1 in cell n_embd=8 has ended: complete"),
    ("resume tiny/n_embd=8/1", "trial 1 in cell n_embd=8 was not pruned: complete"),
    ("show tiny --trial 9", "study tiny has no trial 9; allowed: 0 to 1"),
    ("best tiny --cell n_embd=9", "study tiny has no cell 'n_embd=9'; allowed: n_embd=16, n_embd=8; did"),
    ("best tiny --trial 0", "2 cells of study tiny have a trial 0; name one with --cell"),
    ("best tiny --output tiny.yaml", "tiny.yaml: the file exists already; allowed: --force"),
    ("export tiny --output x.txt", "x.txt: no table has the suffix '.txt'; allowed:"),
    ("export tiny --output no/x.csv", "no/x.csv: cannot be written: "),
    # Pages.
    ("report tiny --dashboard no.yaml", f"no.yaml: {NO_FILE} or directory"),
    ("diff tiny --page", "1 name; allowed: two; with --page two or more"),
    ("diff tiny tiny --page", "named twice"),
    ("ui tiny --port 70000", "--port"),
    # The table, and files made from it.
    ("init mine --table nowhere.md", f"nowhere.md: {NO_FILE}"),
    ("init mine --search dropuot", "did you mean 'dropout'"),
    ("init mine --search dropout=high..low", "--search dropout=high..low: not a range of dropout; allowed: 1e-4 to"),
    ("init mine --search lr=1e-2..1e-4", "--search lr=1e-2..1e-4: search.learning_rate is inverted"),
    ("plan tiny.yaml -o family=encoder --search mask_share=0.1..0.3", "the trials learn different tasks, by their"),
    ("init mine --grid n_layer=1,many", "n_layer is 'many'; allowed: a whole number, at least 1"),
    ("plan tiny.yaml --grid layerz=1,2", "--grid layerz=1,2: unknown hyperparameter 'layerz'"),
    ("init new --data none.txt", "there is no file"),
    ("init new --data short.txt", "too few for three splits"),
    ("init new --data short.txt --preset gpt2", "--data chooses all values"),
    ("init tiny --output tiny.yaml", "tiny.yaml: the file exists already; allowed: --force"),
    ("init mine --output no/such.yaml", f"no/such.yaml: {NO_FILE} or directory"),
    *((f"init {name}", "cannot be a study's name") for name in ("../mine", "'a b'", "''", ".hidden")),
    # Models, and runs in use.
    ("plan gpt22 --layers", f"gpt22: {NO_FILE}"),
    ("plan tiny.yaml --cell n_embd=8", "--cell with --layers or --coordinates"),
    ("plan tiny.yaml --layers --bench", "--layers and --bench exclude each other"),
    ("plan tiny.yaml --layers --cell n_embd=9", "allowed: n_embd=8, n_embd=16"),
    ("plan gpt2 --layers -o n_kv_head=5", "-o n_kv_head=5: no cell meets 'n_kv_head divides n_head"),
    ("trace tiny --prompt a --page out", "out: is a folder; allowed: the name of a file"),
    ("stop tiny/n_embd=8", "'n_embd=8' is no trial; allowed: tiny/CELL/TRIAL"),
    ("doctor --repair", "NAME --repair"),
    ("doctor tiny --dry-run", "NAME --repair --dry-run"),
    ("plan tiny.yaml --coordinates -o 'grid.n_layer=[1, 2]'", "2 cells besides its widths; allowed: --cell n_layer=1"),
    ("plan tiny.yaml --coordinates --cell n_layer=3 -o 'grid.n_layer=[1, 2]'", "no cell 'n_layer=3'"),
    ("evaluate mine", "run mine is of no study in this lab: name one with --study, for its data"),
    ("evaluate mine --study tiny", "run mine and study tiny have different tokenizers"),
    ("evaluate paired --study tiny", "run paired was trained on pairs, but study tiny has text"),
    ("evaluate long --study tiny", "block_size 1000000 is longer than the data: the validation split has "),
    ("predict tiny t", "no token is before it"),
    ("predict tiny", "there is no text; allowed: RUN TEXT…, or --file FILE"),
    ("generate masked --prompt a[MASK] --beams 2", "--beams needs a decoder"),
    ("generate mine --prompt abÉd", "in the prompt, character 'É' at 2 is not among the 27"),
    ("generate mine --prompt a --top-p 2", "--top-p is 2.0; allowed: a number, above 0, at most 1"),
    ("generate mine --prompt a --temperature -1", "--temperature is -1.0; allowed: a number, at least 0"),
    ("generate mine --prompt a --max-new-tokens 100000000000", "a whole number, at least 1, at most 1,048,576"),
    ("generate mine --prompt a --seed 9223372036854775808", "--seed"),
    ("generate mine --prompt a --contrast bytes", "runs mine and bytes have different tokens"),
    ("generate mine --prompt a --contrast pairs", "runs mine and pairs have different tokens"),
    ("generate mine --prompt a --contrast mine", "--contrast mine has 1,296 parameters, and mine 1,296; allowed: a s"),
    ("generate masked --prompt a[MASK] --contrast masked", "--contrast needs decoders, and masked is an encoder, whic"),
    ("generate pairs --prompt abcdefghij --contrast shorter", "the prompt takes 10 tokens; "),
    ("generate ids --prompt 99999", "in the prompt, '99999' at 0 is not a token id from 0 to 29: the run has no tok"),
    ("generate masked --prompt abc", "the prompt has no [MASK]"),
    ("generate mine --prompt=", "the prompt is empty"),
    ("generate txt --prompt a", "no run 'txt'; allowed: a study's NAME, NAME/CELL or NAME/CELL/TRIAL-SEED"),
    ("export-hf tny out/hf", "no run 'tny'; allowed: "),
    ("export-hf far out/hf", "GPT2LMHeadModel cannot express positions alibi; allowed: positions learned"),
    ("import-hf nowhere", f"nowhere/config.json: {NO_FILE} or directory"),
    # Laws.
    ("laws fit runs.csv", "runs.csv: which column is the loss? name it with --columns loss=COLUMN; allowed: N, D, val"),
    ("laws fit runs.csv --columns params=n,tokens=D,loss=val", "runs.csv: no column 'n'; allowed: N, D, val"),
    ("laws fit runs.csv --columns parms=N", "--columns has no 'parms'"),
    ("laws fit runs.csv --columns params=D,tokens=N*1e-9,loss=val", "or params and tokens swapped"),
    (f"laws fit runs.csv {COLUMNS} --tuned eech", "did you mean 'each'?"),
    (f"laws fit runs.csv {COLUMNS} --flops -1", "--flops -1"),
    (f"laws fit runs.csv {COLUMNS} --where 'n > 1e6'", "has no column 'n'; allowed: line, N, D, val; did you mean 'N'"),
    (f"laws fit runs.csv {COLUMNS} --count at=final", "--count at=final needs a study's runs"),
    ("laws fit tiny --count params=all", "--count params=all; allowed: total, active, non-embedding"),
    ("laws fit tiny,runs.csv", "'runs.csv' is a file; allowed: studies, with commas between them"),
    (f"laws fit runs.csv {COLUMNS} --law chinchila", "there is no law 'chinchila'; allowed: chinchilla, tied"),
    ("laws fit tiny --law power-n", "2 rows for the 3 parameters of power-n"),
    (f"laws fit negative.csv {COLUMNS}", "negative.csv: column 'N' (params): '-1.0' in line 2 is not positive"),
    (f"laws fit none.csv {COLUMNS}", "none.csv: no row can be used: 2 not finite"),
    (f"laws fit runs.csv {COLUMNS} --report runs.csv/law.html", "cannot be written"),
    (f"laws fit few.csv {COLUMNS}", "4 rows for the 5 parameters of chinchilla"),
    (f"laws next runs.csv {COLUMNS} --flops 4", "4 FLOPs are too few for any candidate"),
    (f"laws next runs.csv {COLUMNS} --flops 1e18 --quantity bta", "did you mean 'beta'?"),
    (f"laws predict runs.csv {COLUMNS}", "which size? give --at NAME=VALUE,… or --targets FILE"),
    (f"laws predict runs.csv {COLUMNS} --at params=-1", "--at 'params=-1'; allowed: "),
    (f"laws predict runs.csv {COLUMNS} --at params=2e8", "params 2e+08: chinchilla needs tokens too"),
    (f"laws predict runs.csv {COLUMNS} --at params=2e8,tokens=4e9 --write x.yaml", "a size of a study's grid"),
    ("laws verify", "no ledger at "),
    # A name that is no file's, and a pipe, for whose writer nobody waits.
    *((f"laws fit {name}", "File name too long") for name in (LONG, f"{LONG}.csv", f"{LONG},{LONG}")),
    (f"study list --lab {LONG}", "File name too long"),
    ("laws fit pipe.csv", "pipe.csv: cannot be read: is no file"),
    ("import-hf pipe", "pipe/config.json: is no file"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(finished, tmp_path_factory):
    """Return a folder with a lab, a study file, runs and tables, which no command may change."""
    place = tmp_path_factory.mktemp("refused")
    shutil.copytree(finished.lab, place / "lab")
    (place / "tiny.yaml").write_text(STUDY)
    (place / "fresh.yaml").write_text(STUDY.replace("tiny", "fresh"))
    (place / "short.txt").write_text("a short")
    (place / "none.csv").write_text("N,D,val\n1e6,2e7,\n2e6,4e7,nan\n")
    for name in ("out", "pipe"):
        (place / name).mkdir()
    os.mkfifo(place / "pipe" / "config.json")
    os.mkfifo(place / "pipe.csv")
    table = write_table(place / "runs.csv", np.geomspace(1e6, 1e8, 6), (2, 6, 20, 60, 200))
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    tables = {"few": rows[[0, 1, 5, 6]], "negative": np.r_[rows[:1] * [-1e-6, 1, 1], rows]}
    for name, table in tables.items():
        write_rows(place / f"{name}.csv", table)
    tokenizer = open_run("tiny", finished.lab).tokenizer
    run_in(place / "mine")
    run_in(place / "paired", tokenizer, kind="pairs")
    run_in(place / "long", tokenizer, positions="rotary", block_size=1_000_000)
    run_in(place / "masked", family="encoder")
    run_in(place / "pairs", family="encoder_decoder", kind="pairs")
    run_in(place / "shorter", family="encoder_decoder", kind="pairs", n_embd=4, block_size=8)
    run_in(place / "bytes", tokenizer=ByteTokenizer())
    run_in(place / "ids", tokenizer=IdsTokenizer(30))
    run_in(place / "smaller", n_embd=4)
    far = run_of(small(GPT2, positions="alibi"))
    facts = {"values": far.values.as_dict(), "tokenizer": far.tokenizer.to_json()}
    write_checkpoint(place / "far", "model", far.model.weights, facts)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "message"), REFUSED, ids=[command[:60] for command, _ in REFUSED]
)
def test_it_is_one_line_and_nothing_is_changed(command, message, cli, place, monkeypatch):
    monkeypatch.chdir(place)
    before = contents(place)
    said = cli(*shlex.split(command))
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said
    assert said.err.startswith("error: ") and message.format(lab=place / "lab") in said.err
    assert contents(place) == before
