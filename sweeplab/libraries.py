"""Whether private parts of libraries are used.

Such a part is faster than what its library offers publicly, and may change with any version. Each library has one file
for them, with a public way behind the same calls: Optuna `sweep/trials/tables.py`, torch `train/private.py`, Ray
`sweep/engines/private.py`. A file's `why_public` says why its public way is taken.
"""

from __future__ import annotations

import os

# The environment variable that switches all private ways off, for all processes that share a lab.
VARIABLE = "SWEEPLAB_PUBLIC_ONLY"


def switched_off() -> str:
    """Return that the user has switched the private ways off; empty where they may be taken."""
    return f"{VARIABLE} is set" * (os.environ.get(VARIABLE, "") not in ("", "0"))
