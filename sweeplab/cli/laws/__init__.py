"""What `laws` commands share: the points of a table's file or of studies, and how numbers are printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.options import argument, option, studies
from sweeplab.cli.printing import print_rows, say
from sweeplab.errors import BadInput, Problem

if TYPE_CHECKING:
    from sweeplab.analysis.studies import Studies
    from sweeplab.laws.columns import Counting
    from sweeplab.laws.hyperparameters.assessment import HyperparameterLaws
    from sweeplab.laws.points import Points


Source = Annotated[
    str,
    argument(
        "FILE|STUDY",
        "A .csv, .json, .jsonl or .parquet file, or study names: a,b.",
        autocompletion=studies,
    ),
]
Columns = Annotated[
    str | None,
    option(
        "NAME=COLUMN,…",
        "Columns for params, tokens, loss, flops, n_layer, n_embd, learning_rate …; COLUMN*1e9 scales.",
    ),
]
Where = Annotated[
    str | None,
    option("EXPR", "Use only rows where this holds: \"lr < 1e-3 and optimizer == 'adamw'\"."),
]
Count = Annotated[
    str | None,
    option(
        "WHAT=HOW,…",
        "How to count: params=total, active or non-embedding; loss=nats or bits-per-byte; at=best or final; "
        "for a file, rows=best, mean or all per N and D.",
    ),
]
Tuned = Annotated[
    str | None,
    option(
        "HOW",
        "How the points were tuned: each by itself, all by one shared setting, or unknown. "
        " [default: what the trials of a study, or several rows a point, say; else unknown]",
    ),
]
Law = Annotated[
    str,
    option(
        "LAW",
        "One of auto, chinchilla, tied, power-n, power-d, power-c. auto is that of the sizes that vary, power-n "
        "where tokens follow params.",
    ),
]


@dataclass(frozen=True)
class Read:
    """The points of a source, how they are counted, and their studies (None for a file)."""

    source: str
    points: Points
    counting: Counting
    studies: Studies | None

    def hyperparameters(self) -> HyperparameterLaws | None:
        """Return the laws of the searched values; None where nothing was searched.

        Raises:
            BadInput: nothing was searched though a column of a hyperparameter was named.
        """
        from sweeplab.analysis.studies import tuned_runs
        from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters
        from sweeplab.laws.hyperparameters.runs import runs_of_frame
        from sweeplab.laws.reading import read_frame

        source = self.source
        counting = self.counting
        try:
            if self.studies is None:
                runs = runs_of_frame(read_frame(Path(source)), source, counting)
            else:
                runs = tuned_runs(self.studies.runs, source, counting, self.studies.design)
            return assess_hyperparameters(runs)
        except BadInput:
            if counting.roles != counting.columns:
                raise
            return None


def read_source(
    source: str,
    columns: str | None,
    count: str | None,
    lab: Path | None,
    where: str | None = None,
    tuned: str | None = None,
) -> Read:
    """Read a file, or the studies that the source names, with commas between them."""
    from sweeplab.analysis.studies import read_studies
    from sweeplab.hyperparameters import TABLE
    from sweeplab.laws.columns import (
        ROLES,
        SEARCHED_NAMES,
        Counting,
        pairs_of,
        parse_conventions,
    )
    from sweeplab.laws.hyperparameters.excess import file_points

    named = pairs_of("--columns", columns or "", (*ROLES, *SEARCHED_NAMES), TABLE)
    counting = Counting(parse_conventions(count or ""), named, where or "", tuned or "")
    if is_file(source):
        return Read(source, file_points(Path(source), counting), counting, None)
    names = names_in(source)
    for name in filter(is_file, names):
        raise BadInput(Problem(f"{name!r} is a file", "studies, with commas between them"))
    every = read_studies(lab, names)
    studies = every.only(counting.where)
    counting = studies.settled(counting)
    points = studies.points(counting)
    points = points.left_out(f"not where {where}", len(every.runs) - len(studies.runs))
    return Read(source, points, counting, studies)


def names_in(text: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in text.split(",")]


def is_file(source: str) -> bool:
    """Return whether a source is a table's file: an existing file, or a name with a table's suffix."""
    from sweeplab.laws.reading import is_table

    path = Path(source)
    return path.is_file() or ("," not in source and is_table(path))


def print_numbers(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print numbers as a table, then why some of them are not identified, those with the same reason in one line."""
    rows = []
    reasons = dict[str, list[str]]()
    for name, entry in entries.items():
        rows.append({**entry, "quantity": name})
        if entry["verdict"] != "identified":
            reasons.setdefault(entry["why"], []).append(name)
    shown = ("quantity", "value", "low", "high", "verdict")
    print_rows(rows, text=("quantity", "verdict"), keys=shown)
    for reason, names in reasons.items():
        say(f"{', '.join(names)}: {reason}")
