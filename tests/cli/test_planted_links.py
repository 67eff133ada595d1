"""Every command that writes a file writes it where it says, and through no link that lies there already."""

import ast
import os
import shutil
from pathlib import Path

import pytest
from cli.conftest import contents
from law_tables import TABLE

import sweeplab
from sweeplab.errors import BadInput
from sweeplab.records.runs import append_lines

# Each writes into the folder `out`, or into a folder of reports in the lab.
COMMANDS = [
    "init mine --output out/mine.yaml --force",
    "init mine --output out/mine.yaml",
    "best tiny --output out/best.yaml --force",
    "laws fit points.csv --report out/law.html",
    "export tiny --output out/trials.csv",
    "report tiny",
    "report tiny --page sweep",
    "trace tiny --prompt the --page out/attention.html",
    "export-hf tiny out/hf",
]
NAMES = ("{}.tmp", "{}.part", "{}.new", "{}~", ".{}.swp", ".{}.tmp", "{}.{pid}.tmp", "tmp{}")


@pytest.fixture
def place(folder, lab):
    (folder / "points.csv").write_text(TABLE)
    (folder / "out").mkdir()
    return folder


def for_people(place):
    """Return the files that commands write for people, with the times when they were written."""
    files = contents(place / "out") | contents(place / "lab")
    return {
        file: time
        for file, time in files.items()
        if {"out", "report", "reports"} & {*file.parts}
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_through_a_link(cli, place, command):
    before = for_people(place)
    assert cli(*command.split()).code == 0
    written = {file for file, _ in for_people(place).items() - before.items()}
    assert written, "it writes"
    victims = {}
    for number, file in enumerate(sorted(written)):
        for at, pattern in enumerate(NAMES):
            victim = place.parent / f"{place.name}-{number}-{at}"
            victim.write_text("mine")
            link = file.with_name(pattern.format(file.name, pid=os.getpid()))
            link.symlink_to(victim)
            victims[link] = victim
        file.unlink()
        # The file's own name, with nothing behind it yet.
        victims[file] = place.parent / f"{place.name}-{number}"
        # Without --force nothing may be there.
        if command != "init mine --output out/mine.yaml":
            file.symlink_to(victims[file])
    again = cli(*command.split())
    assert again.code == 0, again.err
    for link, victim in victims.items():
        assert not victim.exists() if link in written else victim.read_text() == "mine", link
    assert all(file.is_file() and not file.is_symlink() for file in written)


FOLDERS = (
    "studies/tiny",
    "studies/tiny/runs",
    "studies/tiny/runs/*",
    "studies/tiny/report",
    "studies/tiny/*-0.log",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FOLDERS, "artifacts/**/plan.json", "logs", "reports"])
def test_no_folder_of_a_lab_leads_out_of_it(cli, place, name):
    """Whoever gives somebody a lab would otherwise choose where its files are written."""
    lab, victim = place / "lab", place / "victim"
    shutil.rmtree(lab / "reports")  # what all pages share is written once
    link = next(lab.glob(name), lab / name)
    is_file = link.is_file()
    if is_file:
        victim.mkdir()
    if link.exists():
        shutil.move(link, victim)
    victim.mkdir(exist_ok=True)
    link.symlink_to(victim / link.name if is_file else victim)
    before = {file: file.read_bytes() for file in contents(victim)}
    commands = (
        "extend tiny --trials-per-cell 4 --no-run",
        "resume tiny",
        "run tiny --detach",
        "report tiny",
    )
    refusals = 0
    for words in (*commands, "diff tiny tiny --page", "rename tiny c --yes"):
        said = cli(*words.split())
        assert said.code in (0, 1, 2, 130) and "Traceback" not in said.err, (words, said)
        refusals += said.code > 0 and (
            "leads out of" in said.err or "symbolic link" in said.err
        )
        assert {file: file.read_bytes() for file in contents(victim)} == before, (words, said)
    assert refusals or (is_file and not link.is_symlink())


def test_lines_are_not_added_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "points.jsonl").symlink_to("mine")
    with pytest.raises(BadInput, match="symbolic link"):
        append_lines(tmp_path / "points.jsonl", ["theirs"])
    assert (tmp_path / "mine").read_text() == "mine\n"


WRITING = {
    "write_text",
    "write_bytes",
    "touch",
    "copyfile",
    "copy2",
    "save_file",
    "write_html",
    "savefig",
}
READING = {"read_text", "read_bytes"}
# What these write, and read, lies in a temporary folder that they have just made, which only this user may enter.
INTO_OWN_FOLDERS = {
    "api.py", "sweep/choosing.py", "tracking/connection.py", "tracking/models.py", "train/compiling.py",
    "train/program.py",
}  # fmt: skip
# These read files of the system, of the package and of its libraries; the first, a page that it has just written.
OF_NOBODY_ELSE = {
    "report/writer.py", "doctor/__init__.py", "lab/studies.py", "report/live.py", "plugins.py", "study/file/resolve.py",
    "tracking/environment.py", "train/devices.py", "train/program.py",
}  # fmt: skip


def users(source, names, modes):
    """Return the calls of a module that have one of these names, or open files in one of these modes."""
    found = []
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call):
            continue
        is_method = isinstance(node.func, ast.Attribute)
        if ast.unparse(node.func) == "formatter.write_text":  # a line of a help page
            continue
        called = node.func.attr if is_method else getattr(node.func, "id", "")
        at = 0 if is_method else 1
        given = [
            *node.args[at : at + 1],
            *(each.value for each in node.keywords if each.arg == "mode"),
        ]
        texts = [
            each.value
            for each in given
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        if not given and (
            not is_method or any(each.arg == "encoding" for each in node.keywords)
        ):
            texts = ["r"]
        opens = called == "open" and any(
            len(text) <= 3 and {*text} & {*modes} for text in texts
        )
        if opens or (is_method and called in names):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "modes", "exempt"),
    [(WRITING, "wax+", INTO_OWN_FOLDERS), (READING, "r", INTO_OWN_FOLDERS | OF_NOBODY_ELSE)],
    ids=["written", "read"],
)
def test_files_are_opened_in_one_module(names, modes, exempt):
    """It follows no link to write, and waits for no pipe to read."""
    package = Path(sweeplab.__file__).parent
    found = {
        file.relative_to(package).as_posix(): users(file, names, modes)
        for file in package.rglob("*.py")
    }
    assert found.pop("files.py"), "it finds them"
    assert {name: calls for name, calls in found.items() if calls and name not in exempt} == {}


@pytest.mark.parametrize("name", ["8/0-0", "8"])
@pytest.mark.parametrize("leads_to_itself", [True, False])
def test_a_link_in_the_place_of_runs_is_told_and_nothing_else_counted(
    cli, json_of, lab, tmp_path, name, leads_to_itself
):
    link = next((lab / "studies/tiny/runs").glob(f"*{name}"))
    shutil.move(link, tmp_path / "moved")
    link.symlink_to(tmp_path / "moved" if leads_to_itself else "/nothing")
    for words in ("run tiny", "show tiny", "doctor tiny --repair"):
        said = cli(*words.split())
        assert (said.code, said.out) == (2, "") and f"{link}: a symbolic link" in said.err, said
    checks = json_of("doctor tiny")
    (told,) = (each for each in checks if "symbolic link" in each["found"])
    assert (told["looked_at"], told["verdict"]) == (str(link), "bad")
    assert [row["done"] for row in json_of("list")] == [4]
