"""Another user of this machine, and the modules that somebody put into the folder that one stands in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Who may become another user: root, to whom a number without an account is one as well.
UID = 54321
IS_ANOTHER = os.getuid() == 0
# Everything that the package and what it stands on import, but what Python has built in.
NAMES = """
import sys, importlib.machinery as machinery
import sweeplab.cli, torch, optuna, mlflow, mlflow.server, uvicorn, starlette, pandas, plotly, scipy, psutil, sqlalchemy
import torch._inductor.compile_fx, sweeplab.report.live, sweeplab.sweep.work.worker, sweeplab.tracking.mlflow
names = {name.partition(".")[0] for name in [*sys.modules, *sys.stdlib_module_names]} - {"__main__", "__mp_main__"}
print(*sorted(name for name in names if name.isidentifier() and machinery.BuiltinImporter.find_spec(name) is None))
"""


# Imported while the interpreter's files can still be read.
_BECOME = f"""
import encodings.idna, http.client, json, os, sys, urllib.error, urllib.request, psycopg
os.setgroups([])
os.setgid({UID})
os.setuid({UID})
"""


def python(
    program: str, *arguments: object, is_another: bool = IS_ANOTHER
) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of another user, where the suite may, else of this one."""
    command = [sys.executable, "-c", (_BECOME if is_another else "") + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/")


def plant_modules(folder: Path) -> Path:
    """Fill a folder with a module of every name that is imported, each of which raises; return where they say so."""
    names = subprocess.run(
        [sys.executable, "-P", "-c", NAMES], capture_output=True, text=True, check=True, cwd="/"
    )
    said = folder / "ran.txt"
    for name in names.stdout.split():
        code = f"import builtins, sys\nwith builtins.open({str(said)!r}, 'a') as file:\n"
        code += f"    print({name!r}, sys.orig_argv, file=file)\nraise SystemExit({name!r})\n"
        (folder / f"{name}.py").write_text(code)
    return said
