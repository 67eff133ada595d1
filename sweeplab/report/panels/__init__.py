"""The panels of reports: every module of this folder has one, or several that are kin."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):  # a panel becomes known by being imported
    import_module(f"{__name__}.{_module.name}")
