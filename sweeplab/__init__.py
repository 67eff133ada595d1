"""Experiment tracking and hyperparameter sweeps for small transformers."""

import sys

# `python -m sweeplab` has put the working folder first on the module path: nothing is imported from there.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeplab.version import VERSION

if TYPE_CHECKING:
    from sweeplab import laws
    from sweeplab.api import Study, load_run, load_study, make_study, open_study
    from sweeplab.errors import BadInput
    from sweeplab.runs.run import Run

__version__ = VERSION
__all__ = ["BadInput", "Run", "Study", "laws", "load_run", "load_study", "make_study", "open_study"]
# Where public names live that are not of the api: all are imported when they are first used, so that `import sweeplab`
# alone is quick.
_HOMES = {"BadInput": "sweeplab.errors", "Run": "sweeplab.runs.run"}


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used."""
    if name == "laws":
        return import_module("sweeplab.laws")
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "sweeplab.api")), name)
    raise AttributeError(f"module 'sweeplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
