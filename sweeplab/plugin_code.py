"""The code of plugins: a Python file, or an installed package with an entry point; executed if the user has allowed it.

The permission is for the digest of the code, wherever it lies: it holds for every command and worker, and changed code
has none. What is executed are the bytes with this digest.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from sweeplab import permissions, plugins
from sweeplab.errors import BadInput, said
from sweeplab.files import read_bytes

GROUP = "sweeplab.plugins"
_KIND = "plugin"
# The parts registered by the code that this process has executed, by its place and digest.
_imported: dict[tuple[str, str], list[tuple[str, str, Any]]] = {}


def installed() -> Mapping[str, EntryPoint]:
    """Return the plugins of installed packages by the names of their entry points."""
    return {point.name: point for point in entry_points(group=GROUP)}


def is_package(place: str) -> bool:
    """Return whether a study names an entry point, not a file."""
    return not place.endswith(".py") and Path(place).name == place


@dataclass(frozen=True)
class Code:
    """The code of a plugin: a file, or the name of an entry point; its content and the digest of that."""

    place: str
    content: bytes
    digest: str

    @classmethod
    def at(cls, place: str) -> Code:
        """Return the code at a place, without executing any of it.

        Raises:
            OSError: there is no such file, or no such package is installed.
        """
        if not is_package(place):
            content = read_bytes(Path(place))
            return cls(place, content, hashlib.sha256(content).hexdigest())
        point = installed().get(place)
        if point is None:
            raise FileNotFoundError(
                2, f"no installed package has an entry point of this name in {GROUP}", place
            )
        digest = hashlib.sha256()
        for file in _sources(point.module.partition(".")[0]):
            digest.update(str(file).encode() + b"\0" + read_bytes(file))
        return cls(place, b"", digest.hexdigest())

    @property
    def is_allowed(self) -> bool:
        """Return whether the user has allowed this code, now or earlier."""
        return permissions.is_allowed(_KIND, self.digest)

    @property
    def was_another(self) -> bool:
        """Return whether the user has allowed other code at this place."""
        return permissions.is_allowed(_KIND, self.place)

    def allow(self) -> None:
        """Remember that the user allows this code; a worker's user has allowed it where the study was started."""
        if self.is_allowed:
            return
        permissions.allow(_KIND, self.digest)
        permissions.allow(_KIND, self.place)

    def parts(self) -> list[tuple[str, str, Any]]:
        """Execute the code once in this process, and return the parts that it registers: kind, name, part.

        Raises:
            BadInput: it raises; says what, and in which line.
        """
        key = self.place, self.digest
        if key in _imported:
            for part in _imported[key]:  # other code may have replaced a name since
                plugins.add(*part)
            return _imported[key]
        before = len(plugins.added)
        try:
            self._execute()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise BadInput(said(error, Path(self.place))) from error
        _imported[key] = plugins.added[before:]
        return _imported[key]

    def _execute(self) -> None:
        if is_package(self.place):
            point = installed()[self.place]
            if point.module in sys.modules:  # imported before its parts were asked for
                importlib.reload(sys.modules[point.module])
            point.load()
            return
        module = ModuleType(f"sweeplab_plugin_{self.digest[:12]}")
        module.__file__ = self.place
        sys.modules[module.__name__] = module  # inspect, pickle and dataclasses look there
        try:
            exec(compile(self.content, self.place, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[module.__name__]
            raise


def import_allowed(place: str, digest: str) -> bool:
    """Execute the code at a place, if it has this digest and the user has allowed it; return whether it is imported.

    Raises:
        BadInput: the code raises.
    """
    if (place, digest) in _imported:
        return True
    try:
        code = Code.at(place)
    except OSError:
        return False
    if code.digest != digest or not code.is_allowed:
        return False
    code.parts()
    return True


def _sources(package: str) -> list[Path]:
    module = PathFinder.find_spec(package)  # which imports nothing
    if module is None or module.origin is None:
        return []
    origin = Path(module.origin)
    if origin.name == "__init__.py":
        return sorted(origin.parent.rglob("*.py"))
    return [origin]
