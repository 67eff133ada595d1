"""Another user of this machine, and the modules that somebody put into the folder that one stands in."""

import json
import os
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

from terminal import captured

# Who may become another user: root, to whom a number without an account is one as well.
UID = 54321
IS_ANOTHER = os.getuid() == 0
# Imported while the interpreter's files can still be read.
_BECOME = f"""
import contextlib, encodings.idna, http.client, json, os, sys, urllib.error, urllib.request
with contextlib.suppress(ImportError):
    import psycopg
os.setgroups([])
os.setgid({UID})
os.setuid({UID})
"""


def python(program, *arguments, is_another=IS_ANOTHER):
    """Run a program in an interpreter of another user, where the suite may, else of this one."""
    command = [
        sys.executable,
        "-c",
        (_BECOME if is_another else "") + program,
        *map(str, arguments),
    ]
    return captured(command, timeout=300, cwd="/")


# What a shell would do something about. A slash cannot be in a name.
HOSTILE = "-a b'\"`touch ran`$(touch ran);touch ran;&touch ran|*?<>#~{a,b}!-x"


class Hostile(NamedTuple):
    """A study file, and a folder for a lab, whose names a shell would carry out."""

    file: Path
    lab: Path


def hostile_place(folder, study):
    """Write a study of a text of one's own, all of whose names a shell would carry out."""
    data, file = folder / f"{HOSTILE}.txt", folder / f"{HOSTILE}.yaml"
    data.write_text(
        "".join(f"Line {i} of what is written here, {i * i % 97}.\n" for i in range(400))
    )
    own = f"corpus: text, tokenizer: char, path: {json.dumps(data.name)}"
    file.write_text(study.replace("corpus: python-docs, tokenizer: char", own))
    return Hostile(file, folder / f"{HOSTILE}lab")


def plant_modules(folder):
    """Fill a folder with modules of all names that can be imported, which raise; return where they say so."""
    known = {"sweeplab", *sys.stdlib_module_names, *packages_distributions()} - {"__main__"}
    said = folder / "ran.txt"
    for name in sorted(filter(str.isidentifier, known - {*sys.builtin_module_names})):
        code = f"import builtins, sys\nwith builtins.open({str(said)!r}, 'a') as file:\n"
        code += f"    print({name!r}, sys.orig_argv, file=file)\nraise SystemExit({name!r})\n"
        (folder / f"{name}.py").write_text(code)
    return said
