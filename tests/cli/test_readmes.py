"""Every README.md is executable: its blocks run in order, in the lab that README's first command has made.

What each kind of block and command gets:

- yaml: read as what it is, a study file, a section of one, or a dashboard.
- python: executed; a panel that it defines is drawn.
- csv: compared with the beginning of the table that the commands after it read.
- sh, and text with `$`: each command runs, and what is shown below it is compared with what it prints.
- text without `$`: the last lines of the last command, or, on a page without commands, a map whose files exist.
- `sweeplab …` within a sentence of the first page: as in a block, unless it has a placeholder such as NAME; then, and
  on the other pages, its command and options exist.

What each command gets:

- sweeplab: runs in this process and must succeed. Those of TRAINS, SERVES and CLUSTER are parsed, and planned if they
  run a study; tests marked slurm and ray let them train on a cluster, the others have tests of their own.
- pytest, python and scripts: the files and tests that they name exist. export: it is a setting.

What is shown is compared line by line, whatever the spaces between words. `…` stands for any text, on a line of its own
for any lines. A number or a digest stands for any other, since it depends on the training or the machine.
"""

import io
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.main import get_command
from workers_here import workers_here

import sweeplab
from sweeplab.cli import app, main
from sweeplab.report.panels.base import PANELS, options_of, read_dashboard
from sweeplab.study.file.reading import read_plain
from sweeplab.study.file.template import study_schema
from sweeplab.study.options import PRUNERS, SAMPLERS
from sweeplab.study.spec import StudySpec

REPOSITORY = Path(__file__).parents[2]
READMES = sorted(
    path.relative_to(REPOSITORY)
    for folder in ("", "sweeplab", "studies", "dashboards", "tests")
    for path in (REPOSITORY / folder).glob("**/README.md" if folder else "README.md")
)
TRAINS, SERVES, CLUSTER = (
    {"run", "confirm"},
    {"dashboard", "ui", "watch"},
    {"--engine", "storage"},
)
# What the short study has in place of what small.yaml says: the same rooms, seconds instead of minutes.
SHORT = {
    "corpus: python-source": "corpus: python-docs",
    "tokens_per_param: 12": "max_iters: 30\n  dtype: float32",
    "warmup_iters: 10%": "warmup_iters: 2",
    "eval_interval: 25%": "eval_interval: 10",
    "eval_tokens: 16384": "eval_tokens: 1024",
    "n_embd: [24, 30, 36, 42, 48, 54, 60, 66]": "n_embd: [24]",
    "pruner: none": "engine: {workers: 2, threads: 1, stack: 4}\npruner: none",
}
ROOT = get_command(app)
PLAIN = {"name": "page", "data": {"corpus": "python-docs", "tokenizer": "char"}}
PLACEHOLDER = re.compile(r"[A-Z]+\b|.*…")
DIGEST, NUMBER = r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b", r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
# What is shown, and what may stand in its place.
ANY = {DIGEST: DIGEST, NUMBER: NUMBER, "…": ".*"}


@dataclass
class Item:
    """A block, or a command within a sentence (of the kind "inline"), with its line."""

    kind: str
    line: int
    lines: list[str] = field(default_factory=list)


def items(text):
    """Yield the blocks of a page, and the commands in its sentences, in their order."""
    block = None
    for number, line in enumerate(text.splitlines(), start=1):
        if block is None and line.startswith("```"):
            block = Item(line.removeprefix("```"), number)
        elif block is None:
            yield from (
                Item("inline", number, [code]) for code in re.findall(r"`([^`]+)`", line)
            )
        elif line == "```":
            yield block
            block = None
        else:
            block.lines.append(line)
    assert block is None, "a block has no end"


def commands(lines):
    """Yield each command of a block, and what is shown below it."""
    with_prompt = any(line.startswith("$ ") for line in lines)
    pending = []
    for line in lines:
        if with_prompt and not line.startswith("$ "):
            pending[-1][1].append(line)
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            pending.append((words[:end], []))
            words = words[end + 1 :]
    yield from pending


def check_shown(shown, printed):
    """Check that what is shown is what was printed."""
    expected = ""
    for line in shown:
        if line == "…":
            expected += r"(?:.*\n)*?"
            continue
        for piece in re.split(f"({'|'.join(ANY)})", " ".join(line.split())):
            expected += next(
                (by for kind, by in ANY.items() if re.fullmatch(kind, piece)), re.escape(piece)
            )
        expected += r"\n"
    if shown[-1] != "…":
        expected += r"\s*\Z"
    lines = "".join(f"{' '.join(line.split())}\n" for line in printed.splitlines())
    assert re.match(expected, lines), f"{shown} is not what is printed:\n{printed}"


@dataclass
class Shared:
    """The folder in which README's first command was typed, and what this printed."""

    folder: Path
    first: list[str]
    printed: str


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Run README's first command in a folder with the studies; small.yaml trains seconds instead of minutes."""
    folder = tmp_path_factory.mktemp("short")
    shutil.copytree(REPOSITORY / "studies", folder / "studies")
    text = (folder / "studies/small.yaml").read_text("utf-8")
    for before, after in SHORT.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (folder / "studies/small.yaml").write_text(text, "utf-8")
    blocks = (
        item
        for item in items((REPOSITORY / "README.md").read_text("utf-8"))
        if item.kind == "sh"
    )
    first = next(words for words, _ in commands(next(blocks).lines) if words[0] == "sweeplab")[
        1:
    ]
    out = io.StringIO()
    with (
        workers_here(),
        chdir(folder),
        redirect_stdout(out),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["sweeplab", *first])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, out.getvalue()
    return Shared(folder, first, out.getvalue())


@dataclass
class Page:
    """A README whose items are run; `faults` are those that are not so."""

    path: Path
    shared: Shared
    cli: Callable[..., Any]
    printed: str | None = None
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    table: list[str] = field(default_factory=list)

    def run(self):
        faults = []
        for item in items((REPOSITORY / self.path).read_text("utf-8")):
            try:
                getattr(self, f"_{item.kind}")(item)
            except Exception as error:
                faults.append(f"{self.path}:{item.line}: {type(error).__name__}: {error}")
        return faults

    def _sh(self, item):
        for words, shown in commands(item.lines):
            self._command(words, shown)

    def _text(self, item):
        if any(line.startswith("$ ") for line in item.lines):
            self._sh(item)
        elif self.printed is not None:
            check_shown(["…", *item.lines], self.printed)
        else:  # a map
            folder = Path()
            for name in map(Path, re.findall(r"[\w/]+\.(?:py|yaml)\b", "\n".join(item.lines))):
                folder = folder if name.parent == Path() else name.parent
                assert any(
                    (REPOSITORY / base / folder / name.name).exists()
                    for base in ("", "sweeplab")
                ), name

    def _inline(self, item):
        code = item.lines[0].removeprefix("time ")
        if not re.match(r"(sweeplab|pytest|python|[\w/]+\.py) ", code):
            return
        words = shlex.split(code)
        if words[0] == "sweeplab":
            check_parsed(words[1:])
        is_run = self.path == Path("README.md") and not any(map(PLACEHOLDER.match, words))
        if is_run or words[0] != "sweeplab":
            self._command(words, [])

    def _yaml(self, item):
        text = "\n".join(item.lines)
        document = YAML(typ="safe").load(text)
        if "panels" in document:
            (file := self.shared.folder / "dashboard.yaml").write_text(text, "utf-8")
            read_dashboard(file)
        elif "name" in document:
            (self.shared.folder / "page.yaml").write_text(text, "utf-8")
            self._runs(["plan", "page.yaml"])
        else:
            read_plain({**PLAIN, **document})

    def _python(self, item):
        known = {*PANELS}
        exec(
            compile("\n" * item.line + "\n".join(item.lines), str(self.path), "exec"),
            self.namespace,
        )
        for name in {*PANELS} - known:
            assert sweeplab.open_study("small").plot(name).data
            del PANELS[name]

    def _csv(self, item):
        self.table = item.lines

    def _command(self, words, shown):
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        name, *rest = words
        if name == "sweeplab":
            check_parsed(rest, whole=True)
            self._sweeplab(rest, shown)
        elif name == "export":
            assert all(re.fullmatch(r"[A-Z_]+=\S+", setting) for setting in rest)
        elif name not in ("pip", "ray"):
            self._script(words)

    def _script(self, words):
        """Check that the files and tests exist that a command of pytest or python names."""
        bases = ("", self.path.parent, "tests/benchmarks", "tests/faults", "tests/gpu")
        for word in words:
            name, _, test = word.partition("::")
            if re.fullmatch(r"[\w/]+(\.py|/\w+)", name) and "NAME" not in name:
                found = [
                    REPOSITORY / base / name
                    for base in bases
                    if (REPOSITORY / base / name).exists()
                ]
                assert found, f"{name} does not exist"
                assert not test or f" {test.partition('::')[0]}" in found[0].read_text(
                    "utf-8"
                ), word

    def _sweeplab(self, words, shown):
        kinds = {*words[:2]}
        if words == self.shared.first:
            self.printed = self.shared.printed
        elif not ({*words} & CLUSTER or kinds & (TRAINS | SERVES)):
            self.printed = self._runs(words)
        else:
            assert not shown
            if "run" in kinds:
                self._runs([*words, "--dry-run"])
        if shown:
            check_shown(shown, self.printed or "")
        if self.table:
            (file,) = (word for word in words if word.endswith(".csv"))
            check_shown(self.table, (self.shared.folder / file).read_text("utf-8"))
            self.table = []

    def _runs(self, words):
        ended = self.cli(*words)
        assert ended.code == 0, f"{shlex.join(words)} exits with {ended.code}: {ended.err}"
        return ended.out


def check_parsed(words, whole=False):
    """Check that a command exists, with its options, and if it is a whole one that it lacks nothing."""
    context = ROOT.make_context("sweeplab", ["list"])
    command, rest = context.command, words[: words.index(">")] if ">" in words else words
    while hasattr(command, "commands") and rest and not re.match("-|…", rest[0]):
        name, *rest = rest
        command = command.get_command(context, name)
        assert command, f"there is no command {name}"
    if "…" in rest:
        return
    options = {name for option in command.params for name in option.opts} | {"--help"}
    unknown = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)} - options
    assert not unknown, f"{shlex.join(words)}: there is no {unknown}"
    if whole:
        command.make_context("page", [*rest]).close()


@pytest.mark.slow
@pytest.mark.parametrize("path", READMES, ids=str)
def test_every_block_is_so(path, short, cli, monkeypatch, workers_here):
    monkeypatch.chdir(short.folder)
    assert not (faults := Page(path, short, cli).run()), "\n\n".join(faults)


def documented(page, heading):
    """Return the rows below the head of the first table after a heading of a page."""
    text = (REPOSITORY / page / "README.md").read_text("utf-8").partition(f"\n{heading}")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in rows]


def names_of(schema):
    """Return the keys of a section of the study file, whichever of its forms has them."""
    if "$ref" in schema:
        schema = study_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    forms = (names_of(form) for form in schema.get("anyOf", ()))
    return {*schema.get("properties", ())}.union(*forms)


def test_every_key_is_read_in_the_shape_shown():
    schema = study_schema()["properties"]
    rows = documented("studies", "## Every key")
    assert {row[0].strip("`") for row in rows} == {*StudySpec.model_fields}
    for name, value, _ in rows:
        key = name.strip("`")
        for code in re.findall(r"`([{[][^`]*[]}])`", value):
            shape = YAML(typ="safe").load(code)
            if isinstance(shape, dict):
                sections = {"fixed", "grid", "search", "first_trial"}
                assert key in sections or {*shape} <= names_of(schema[key]), f"{key}: {code}"
                shape = {part: held for part, held in shape.items() if held is not None}
            needed = {"learning_rate": "suggested"} if key == "first_trial" else {}
            if shape and key != "data":
                read_plain({**PLAIN, "search": needed, key: shape})
    by_key = {row[0].strip("`"): row[1] for row in rows}
    for key, algorithms in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        assert {*re.findall(r"\w+", by_key[key].partition(";")[0])} - {"or"} == {*algorithms}


def test_every_panel_and_option_is_documented_and_there_is_no_other():
    headings = ("Panels of the runs", "Panels of the points", "Panels of a sweep's trials")
    shared, known = {"law", "delta", "metric", "log", "params"}, set()
    for name, _, options in (
        row for heading in headings for row in documented("dashboards", heading)
    ):
        panel = PANELS[name.strip("`")]
        known.add(panel.name)
        told = {
            word
            for code in re.findall(r"`([^`]+)`", options)
            for word in re.findall(r"^\w+", code)
        }
        takes = {*options_of(panel.name).model_fields} - {"title", "width"}
        assert told <= takes and takes - told <= shared, name
    assert known == {*PANELS}
