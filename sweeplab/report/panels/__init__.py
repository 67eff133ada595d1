"""The panels of reports: each module of this folder defines one, or several related ones."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):  # importing a module registers its panels
    import_module(f"{__name__}.{_module.name}")
