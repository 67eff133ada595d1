"""What people write or bring, changed at random: each is read, or refused in lines of their own, and never for long.

A case is its seed, kind and number: `tried("study", 0, 17, folder)` tries it alone.
"""

import itertools
import json
import random
import re
import resource
import shutil
import signal
import struct
import sys
import traceback
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

MOST_SECONDS, MOST_BYTES = 2.0, 500 * 10**6
PAGE = resource.getpagesize()

# ------------------------------------------------------------------ changes

# What stands where it was not meant to.
ODD_YAML = """
null|true|no|~|''|[]|{}|[[]]|{a: b}|-1|0|1|1.5|1e400|-1e400|.nan|.inf|1e-320|1e300|1e-300|0x10|2026-01-01|12:30:00
10_000_000_000_000_000_000_000|suggested|*a|&a 1|!!python/object:os.system|!!binary aGk=|!!bool maybe|!!int x|<<|é
'\\0'|"\\0"|"\\ud800"|"a\\nb"|{min: 1, max: 1e300, step: 1e-300}|{min: 0, max: 1, step: .nan}|{expr: 1/0}|- -|%
{expr: '9**9**9'}|{expr: n_embd}|{when: true}|{min: 1, max: 1e9}|[2, 3]|[1, 1]|[null]|[[1], {a: b}]|@|`
dhms|1e400d|/**/x|/proc/kmsg|/dev/null|~nobody/x|{type: asha, early_stopping_rate: 1000000000}|{type: grid}|..|/
"""
WORDS = [each for line in ODD_YAML.strip().split("\n") for each in line.split("|")]
WORDS += [
    "a" * 300,
    "a" * 5000,
    "9" * 400,
    "9" * 8000,
    "'" + "../" * 100 + "'",
    "dhms" * 200 + "!",
    "[" * 30,
]
CELLS = [
    "", " ", "nan", "inf", "-inf", "-1", "0", "1e400", "1e-400", "1,5", "1.5%", "1.3B", "x", "é", '"', '"a\n',
    "\0", "\ud800", "9" * 8000, "9" * 8000 + "x", "1," * 4000, "a" * 5000, "=1+1", "1e5", "True", "2026-01-01",
]  # fmt: skip
VALUES = [
    None, True, "", "a", "a" * 300, "\ud800", "\0", [], {}, [[]], [1, "a"], {"a": 1}, "auto", "gelu",
    -1, 0, 1, 2, 3, 1.5, 2**31, 2**63, 10**400, 1e308, -1e308, float("nan"), float("inf"), 65536, 1e-320,
]  # fmt: skip
ODD = "{}[]:,-#&*!|>'\"%@` \t\r\u2028\x07\x85\ufeff\x00é\U0001f600"


def of_lines(draw, text, words, others):
    """Return a text with one to four changes of lines, of values, of keys or of characters."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        lines = text.splitlines() or [""]
        at, word = draw.randrange(len(lines)), draw.choice(words)
        part = draw.choice(re.findall(r"[^\s,{}\[\]:]+", lines[at]) or [" "])
        match draw.choice([0, 1, 2, 3, 3, 4, 4, 4, 4, 4, 5, 6, 6, 6, 6, 7]):  # mostly of values
            case 0:
                del lines[at]
            case 1:
                lines.insert(draw.randrange(len(lines)), lines[at])
            case 2:
                lines[at] = "  " * draw.randint(0, 2) + lines[at].lstrip()
            case 3:
                key, colon, _ = lines[at].partition(":")
                lines[at] = f"{key}{colon} {word}"
            case 4:
                lines[at] = lines[at].replace(part, word, 1)
            case 5:
                place = draw.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + draw.choice(ODD) + lines[at][place:]
            case 6:
                other = draw.choice(re.findall(r"[^\s,{}\[\]:]+", others))
                lines[at] = lines[at].replace(part, other, 1)
            case _:
                del lines[at + 1 :]
        text = "\n".join(lines) + "\n"
    return text


def of_bytes(draw, content):
    """Return bytes of which some are others, lacking, or there twice."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(4):
            case 0:
                del found[at : at + draw.choice([1, 8, len(found)])]
            case 1:
                found[at:at] = draw.randbytes(draw.choice([1, 8, 64]))
            case _ if at < len(found):
                found[at] = draw.randrange(256)
    return bytes(found)


def of_json(draw, held):
    """Change one value somewhere in a JSON document, in its place; return the document."""
    holder, name = None, None
    value = held
    while isinstance(value, dict | list) and value and (holder is None or draw.random() < 0.8):
        holder, name = (
            value,
            draw.choice(list(value) if isinstance(value, dict) else range(len(value))),
        )
        value = holder[name]
    if holder is None:
        return deepcopy(draw.choice(VALUES))
    match draw.randrange(4):
        case 0:
            del holder[name]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(["", "a" * 300, "\ud800", "model_type", *holder])] = holder.pop(
                name
            )
        case _:
            near = [value * 2, value + 1, -value] if isinstance(value, int | float) else VALUES
            # A copy: what changes it next would change the cases that come after, too.
            holder[name] = deepcopy(draw.choice([*near, *VALUES]))
    return held


# ------------------------------------------------------------------ kinds

STUDY = """\
name: everything
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, device: cpu, bias: false}
grid: {n_embd: [8, 16]}
cells: [{optimizer: adamw}, {optimizer: lion}]
constraints: ["n_params < 1e6", "n_embd % n_head == 0"]
search:
  learning_rate: {min: 3e-4, max: 1e-2, log: true}
  dropout: {min: 0.0, max: 0.4, step: 0.1}
  warmup_iters: [0, 2, 4]
  weight_decay: {expr: learning_rate * 10}
  min_lr: suggested
  n_kv_head: {choices: [1, 2], when: n_embd == 16}
budget: {trials_per_cell: 2, time: 1h30m}
sampler: {type: tpe, n_startup_trials: 1}
pruner: {type: asha, factor: 3, early_stopping_rate: 0}
seeds: [0, {seed: 1, when: n_embd == 8}]
engine: {workers: 1, stack: 4, threads: 1}
track: {checkpoints: best}
"""
SMALL = """\
name: small
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, max_iters: 20, n_layer: 1, n_embd: 8, n_head: 2}
search: {learning_rate: suggested, activation: [gelu, relu]}
budget: {time: 30m, flops: 1e9}
"""
DASHBOARD = """\
title: Scaling
panels:
  - panel: loss
    title: Loss
    x: n_params
    log: [x, y]
    width: half
  - {panel: law, law: chinchilla, x: params, delta: auto}
  - {panel: residuals, against: [params, tokens]}
  - {panel: residuals, laws: [joint, kaplan]}
"""


def write_text(draw, file, *texts, words=WORDS):
    """Write one of the texts with changes; with WORDS it may also be changed as the document of YAML that it is."""
    text = draw.choice(texts)
    if words is WORDS and draw.random() < 0.6:  # JSON is a part of YAML
        held = YAML(typ="safe", pure=True).load(text)
        for _ in range(draw.choice([1, 1, 2])):
            held = of_json(draw, held)
        text = json.dumps(held, indent=0)
    else:
        text = of_lines(draw, text, words, "\n".join(texts))
    content = text.encode("utf-8", "surrogatepass")
    file.write_bytes(of_bytes(draw, content) if draw.random() < 0.1 else content)


def study(draw, folder):
    from sweeplab.study.file.reading import read_study
    from sweeplab.sweep.planning import make_plan

    write_text(draw, folder / "study.yaml", STUDY, SMALL)
    return lambda: make_plan(read_study(folder / "study.yaml"), folder / "lab")


def table(draw, folder):
    from sweeplab.cli.laws import read_source
    from sweeplab.laws.assessment import assess, law_for

    rows = [("Params_M", "tokens", "loss", "n_layer", "group")]
    for params, tokens in itertools.product((1, 3, 10, 30), (2e7, 2e8, 2e9)):
        loss = (
            1.7
            + 406 / (params * 1e6) ** 0.34
            + 410 / tokens**0.28
            + random.Random(params * tokens).gauss(0, 0.003)
        )
        rows.append((str(params), f"{tokens:g}", f"{loss:.4f}", str(params), "a"))
    texts = ["\n".join(map(separator.join, rows)) + "\n" for separator in ",;\t "]
    write_text(draw, folder / "table.csv", *texts, words=CELLS)

    def read():
        points = read_source(str(folder / "table.csv"), None, None, folder / "lab").points
        if draw.random() < 0.02:  # a fit takes as long as many readings
            assess(points, law_for(points, "power-n"))

    return read


def dashboard(draw, folder):
    from sweeplab.report.panels.base import read_dashboard

    write_text(draw, folder / "dashboard.yaml", DASHBOARD)
    return lambda: read_dashboard(folder / "dashboard.yaml")


def imported(draw, folder):
    """Change a folder of the package transformers with a small model, which is made once."""
    from hf.models import BASES, run_of, small

    from sweeplab.cli.models import import_hf
    from sweeplab.hf.folders import export_run

    name, source = draw.choice(list(BASES)), folder / "model"
    whole = folder / "exported" / name
    if not whole.exists():
        export_run(run_of(small(BASES[name])), whole)
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(whole, source)
    file = source / draw.choice(
        ["config.json", "config.json", "tokenizer.json", "tokenizer_config.json"]
    )
    match draw.randrange(10):
        case 0:
            file.write_bytes(of_bytes(draw, file.read_bytes()))
        case 1:
            depth = draw.choice([50, 100_000])
            file.write_text(f'{{"vocab_size": {"[" * depth}{"]" * depth}}}')
        case 2 | 3 | 4:
            _change_tensors(draw, source / "model.safetensors")
        case 5:
            files = ["model.safetensors", "../x", "a\0", "a" * 300, "\ud800", "."]
            index = of_json(draw, {"weight_map": {"a": draw.choice(files)}})
            (source / "model.safetensors.index.json").write_text(json.dumps(index))
        case _:
            document = json.loads(file.read_text())
            for _ in range(draw.randint(1, 2)):
                document = of_json(draw, document)
            file.write_text(json.dumps(document))
    return lambda: import_hf(source, name="imported", force=True, lab=folder / "lab")


def _change_tensors(draw, file):
    """Change a file of tensors: its bytes, or in its header names, types, sizes and places."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = draw.choice([name for name in header if name != "__metadata__"])
    shape = header[name]["shape"]
    match draw.randrange(8):
        case 0 | 1:
            file.write_bytes(of_bytes(draw, content))
            return
        case 2:  # without dimensions
            header[name] = {
                "dtype": "F32",
                "shape": [],
                "data_offsets": [len(data), len(data) + 4],
            }
            data += b"\0" * 4
        case 3:
            header[name]["shape"] = [1, *shape]
        case 4:
            header[name]["shape"] = shape[::-1]
        case 5:
            header[draw.choice(["", "\ud800", "a" * 300, name + ".x"])] = header.pop(name)
        case 6:
            header[name]["dtype"] = draw.choice(
                ["I32", "U32", "BF16", "F64", "BOOL", "F8_E4M3", "x"]
            )
        case _:
            header = of_json(draw, header)
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + data)


# Each writes a case into a folder, and returns what reads it or raises BadInput.
KINDS = {
    "study": study,
    "table": table,
    "dashboard": dashboard,
    "import": imported,
}
# Of these files each problem has a line, but what is wrong with the file as a whole.
HAVE_LINES = ("study", "dashboard")
WHOLE = (
    "a study is a mapping of keys to values, such as `name: small`",
    "this is not a dashboard",
)

# ------------------------------------------------------------------ a case


class Tried(NamedTuple):
    """How a case ended: read, refused, or what is wrong with that."""

    end: str
    wrong: str


def tried(kind, seed, case, folder):
    """Write and read one case in a folder."""
    from sweeplab.errors import BadInput

    read = KINDS[kind](random.Random(f"{seed}/{kind}/{case}"), folder)
    end, wrong = "read", ""
    try:
        with _bounded():
            read()
    except BadInput as refused:
        end = "refused"
        for each in refused.problems:
            is_nowhere = each.file is not None and each.line is None and each.what not in WHOLE
            if (
                len(str(each).splitlines()) != 1
                or not each.what
                or (kind in HAVE_LINES and is_nowhere)
            ):
                wrong = f"no single line, or it names none: {str(each)!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a library in Rust panics with one
        end, wrong = "fault", "".join(traceback.format_exception(error, limit=-5))
    return Tried(end, wrong)


@contextmanager
def _bounded():
    """Let what runs within this take MOST_SECONDS of the processor and MOST_BYTES more memory, or raise an error."""

    def end(_number, _frame):
        raise TimeoutError(f"more than {MOST_SECONDS:g} s")

    here = (
        int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
        if sys.platform == "linux"
        else 0
    )
    before = resource.getrlimit(resource.RLIMIT_AS)
    heard = signal.signal(signal.SIGPROF, end)
    try:
        if here:
            resource.setrlimit(resource.RLIMIT_AS, (here + MOST_BYTES, before[1]))
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, heard)
        resource.setrlimit(resource.RLIMIT_AS, before)
