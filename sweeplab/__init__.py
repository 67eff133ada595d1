"""Experiment tracking and hyperparameter sweeps for small transformers."""

import sys

# `python -m sweeplab` has put the working folder first on the module path: nothing is imported from there.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from importlib import import_module
from typing import TYPE_CHECKING

from sweeplab.version import VERSION

if TYPE_CHECKING:
    from typing import Any

    from sweeplab import laws as laws
    from sweeplab.api import Study as Study
    from sweeplab.api import load_run as load_run
    from sweeplab.api import load_study as load_study
    from sweeplab.api import make_study as make_study
    from sweeplab.api import open_study as open_study
    from sweeplab.errors import BadInput as BadInput
    from sweeplab.runs.run import Run as Run

__version__ = VERSION
__all__ = [
    "BadInput",
    "Run",
    "Study",
    "laws",
    "load_run",
    "load_study",
    "make_study",
    "open_study",
]
# Where public names live that are not in the API of studies. All are imported when they are first used: `import
# sweeplab` alone is quick.
_HOMES = {"BadInput": "sweeplab.errors", "Run": "sweeplab.runs.run"}


def __getattr__(name: str) -> "Any":
    """Import a public name where it is first used."""
    if name == "laws":
        return import_module("sweeplab.laws")
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "sweeplab.api")), name)
    raise AttributeError(f"module 'sweeplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
