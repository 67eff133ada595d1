"""What a program that is no person may name and set: files and studies in known places, and no address or code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeplab.cli.options import overrides
from sweeplab.errors import BadInput, Problem
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.lab.listing import file_of, find_study, read_spec, study_source

# What such a program sets beside hyperparameters; elsewhere a setting may name a file, and so would allow it.
SETTABLE = ("budget", "confirm", "constraints", "objective", "pruner", "sampler", "seeds")
# The keys of a study file that name files.
_NAMING = ("data", "init_from", "warm_start", "plugins")


@dataclass(frozen=True)
class Reach:
    """A lab, and the resolved files and folders that may be read beside it."""

    lab: Path
    places: Sequence[Path]

    def check(self, text: str) -> None:
        """Refuse a file, a study, or several with commas between them, that leads out of the places.

        Raises:
            BadInput: it does, also by `..` or a symbolic link.
        """
        for name in {text, *text.split(",")}:
            for path in (file_of(name), self.lab / "studies" / name):
                self._check_path(path, name)

    def check_study(self, text: str, values: Mapping[str, Any]) -> None:
        """Refuse a study that reads or contacts what no person has named, or that is changed so.

        `values` are the options of the command that reads it: name, override, grid, search.

        Raises:
            BadInput: with what it names, or what is wrong in it.
        """
        from sweeplab import load_study
        from sweeplab.study.file.document import file_text, parse
        from sweeplab.study.file.reading import MAX_BYTES
        from sweeplab.study.problems import Problems, SourceMap
        from sweeplab.study.spec import beside
        from sweeplab.sweep.planning import check_reach

        for key in ("override", "grid", "search"):
            _check_settings(key, values[key] or ())
        file = study_source(text, self.lab)
        if not file.resolve().is_relative_to(self.lab.resolve()):  # before anything that it names is opened
            content = file_text(file, MAX_BYTES)
            document = parse(content, Problems(SourceMap(file, text=content)))
            for key in _NAMING * isinstance(document, dict):
                for name in _texts(document.get(key)):
                    self._check_path(beside(file, name), name, file.resolve().parent)
        changes = overrides(values["override"], values["grid"], values["search"])
        check_reach(load_study(file, lab=self.lab, name=values["name"], overrides=changes).spec, self.lab)

    def check_run(self, name: str) -> None:
        """Refuse a study of the lab that reads or contacts what no person has named.

        Raises:
            BadInput: with what it names, or there is no such study.
        """
        from sweeplab.sweep.planning import check_reach

        check_reach(read_spec(find_study(self.lab, name)), self.lab)

    def _check_path(self, path: Path, name: str, *more: Path) -> None:
        try:
            target = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL
            raise BadInput(f"{name!r} is no path: {error}") from None
        if not any(map(target.is_relative_to, (*self.places, *more))):
            what = f"{name!r} is out of reach: a person names it where `sweeplab mcp` is started"
            raise BadInput(Problem(what, ", ".join(map(str, self.places))))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value.values()])
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_settings(key: str, settings: Sequence[str]) -> None:
    for text in settings:
        name = text.partition("=")[0]
        is_row = canonical(name) in TABLE and canonical(name) != "wandb_project"
        if not is_row and (key != "override" or name.partition(".")[0] not in SETTABLE):
            allowed = ", ".join(["hyperparameters", *SETTABLE * (key == "override")])
            raise BadInput(Problem(f"{key} {text}: a program does not set {name}", allowed))
