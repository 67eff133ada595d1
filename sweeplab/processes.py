"""How interpreters are started: without modules of the working folder, with private parts of libraries or not.

A private part is faster than what its library offers publicly, and may change with any version. Each library has one
file for them, with a public way behind the same calls: Optuna `lab/tables.py`, torch `train/program.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping


def python(*arguments: object) -> list[str]:
    """Return the command of an interpreter that does not look for modules in the working folder or the script's."""
    return [sys.executable, "-P", *map(str, arguments)]


def python_environment(
    base: Mapping[str, str] = os.environ, /, **changes: str
) -> dict[str, str]:
    """Return the environment of an interpreter, by which those that it starts are as safe."""
    return {**base, "PYTHONSAFEPATH": "1", **changes}


def end_with_parent() -> None:
    """Kill this process group once standard input, which the process that started it holds open, is closed."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would block the exit of this process
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


# The environment variable that switches all private ways off, for all processes that share a lab.
VARIABLE = "SWEEPLAB_PUBLIC_ONLY"


def switched_off() -> str:
    """Return that the user has switched the private ways off; empty where they may be taken."""
    return f"{VARIABLE} is set" if os.environ.get(VARIABLE, "") not in ("", "0") else ""
