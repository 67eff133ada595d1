"""Start further interpreters: their modules come from their installation, never from the folder that one stands in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def python(*arguments: object) -> list[str]:
    """Return the command of an interpreter that does not look for modules in the working folder or the script's."""
    return [sys.executable, "-P", *map(str, arguments)]


def python_environment(base: Mapping[str, str] = os.environ, /, **changes: str) -> dict[str, str]:
    """Return the environment of an interpreter, by which those that it starts are as safe."""
    return {**base, "PYTHONSAFEPATH": "1", **changes}
