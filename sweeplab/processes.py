"""Start further interpreters: their modules come from their installation, never from the folder that one stands in."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping


def python(*arguments: object) -> list[str]:
    """Return the command of an interpreter that does not look for modules in the working folder or the script's."""
    return [sys.executable, "-P", *map(str, arguments)]


def python_environment(base: Mapping[str, str] = os.environ, /, **changes: str) -> dict[str, str]:
    """Return the environment of an interpreter, by which those that it starts are as safe."""
    return {**base, "PYTHONSAFEPATH": "1", **changes}


def end_with_parent() -> None:
    """Kill this process group once standard input, which the process that started it holds open, is closed."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would block the exit of this process
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
