"""The choices of one study in order, and which differences between them are real."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pandas import DataFrame

from sweeplab.analysis.sweep.differences import (
    DIFFERENT,
    FALSE_ALARM,
    UNKNOWN,
    Choice,
    Difference,
    Ranking,
    bits_per_byte,
    rankings,
)
from sweeplab.errors import BadInput
from sweeplab.report.panels.base import Axis, Panel, PanelSpec, TablePanel
from sweeplab.report.panels.differences import DifferencesPanel, objective_of
from sweeplab.report.panels.material import Material
from sweeplab.report.words import listed, several, short
from sweeplab.study.space import BASE

_MOST_NAMED = 6
_LONGEST = 56


def choices_panel(spec: PanelSpec, material: Material) -> Panel:
    """Rank the cells of a study by their losses, task by task, and say which the seeds tell apart.

    Raises:
        BadInput: fewer than two cells have a trial that ended.
    """
    at = objective_of(material)
    found = [(sweep.name, each) for sweep in material.sweeps for each in rankings(sweep, at)]
    each_task = [ranking for _, ranking in found]
    if sum(len(each.choices) for each in each_task) < 2:
        raise BadInput("choices are ranked where two cells or more have a trial that ended")
    columns = {"study": len(material.sweeps) > 1, "task": len({each.task for each in each_task}) > 1}
    apart = [name for name, varies in columns.items() if varies]
    rows = [_row(study, each, ranking, material) for study, ranking in found for each in ranking.choices]
    table = TablePanel(
        title=spec.title or "Choices",
        width=spec.width,
        data=DataFrame(rows),
        shown=DataFrame([_shown(row, apart) for row in rows]),
        notes=tuple(note for study, ranking in found for note in _said(ranking, _of(study, ranking, apart))),
        warnings=(_apart(each_task),) if columns["task"] else (),
        method=_METHOD,
        result={"choices": rows, "tasks": [each.task for each in each_task]},
    )
    lines = [line for study, ranking in found for line in _lines(study, ranking, columns["study"])]
    if not lines:  # each choice is alone in its task
        return table
    return DifferencesPanel(
        **vars(table) | {"data": DataFrame(lines)},
        x=Axis("difference", f"loss above that of {_reference_in_words(each_task)} (nats/token)"),
    )


def _of(study: str, ranking: Ranking, apart: list[str]) -> str:
    """Return what tells a ranking from the others, in words; nothing where there is one."""
    return ", ".join({"study": study, "task": ranking.task}[name] for name in apart)


def _lines(study: str, ranking: Ranking, is_named: bool) -> Iterator[dict[str, Any]]:
    """Yield what is drawn of a ranking: each choice against its reference, the study named where there are several."""
    for each in _from_reference(ranking):
        measured = {"difference": each.difference, "verdict": each.verdict}
        line = _cut(_named(each.b)) + (f" ({study})" if is_named else "")
        yield {"study": study, "task": ranking.task, **asdict(each), **measured, "line": line}


_METHOD = (
    ("A choice", "A cell by its best trial: the mean of its seeds' losses. Where a cell was tuned, the best of several "
     "trials is lucky too, which the seeds do not show: as many trials in each cell make it alike for all."),
    ("Differences", "Loss = cell + seed + rest, by least squares: what a seed does to all cells alike is left out "
     "where they share seeds. The rest is pooled over the cells, but no difference has less than its two cells show."),
    ("Real", f"Holm's procedure over all pairs of a task: in one study of {round(1 / FALSE_ALARM)} any difference is "
     "called real that is none. An interval is Student's at the level at which the procedure tries its difference, so "
     "that it leaves 0 out where, and only where, the difference is told. No difference seen is not none."),
    ("N-grams", "The loss of counting alone, on the same batches, and by how much the choice's loss differs from it."),
    ("Groups", "Choices that share a letter are not told apart from each other."),
)  # fmt: skip


def _reference_in_words(found: list[Ranking]) -> str:
    names = {_reference(each) for each in found}
    return "the choice it is set against" if len(names) > 1 else _cut(_named(names.pop()))


def _reference(ranking: Ranking) -> str:
    """Return the cell that others are set against: the one that changes nothing, or else the best."""
    cells = [each.cell for each in ranking.choices]
    return BASE if BASE in cells else cells[0]


def _from_reference(ranking: Ranking) -> list[Difference]:
    reference = _reference(ranking)
    return [ranking.between(reference, each.cell) for each in ranking.choices if each.cell != reference]


def _row(study: str, choice: Choice, ranking: Ranking, material: Material) -> dict[str, Any]:
    reference = _reference(ranking)
    own = choice.cell == reference
    difference = None if own else ranking.between(reference, choice.cell)
    return {
        "study": study,
        "task": ranking.task,
        "rank": 1 + ranking.choices.index(choice),
        "choice": choice.cell,
        "n_params": choice.n_params,
        "n_params_active": float(choice.values.get("n_params_active", choice.n_params)),
        "loss": choice.loss,
        "bits_per_byte": _bits_per_byte(choice, material),
        "n_grams": float(material.baselines.get(choice.cell, {}).get("loss", math.nan)),
        "seed_sd": choice.sd,
        "seeds": choice.n_seeds,
        "groups": "".join(chr(ord("a") + each % 26) for each in choice.group),
        "against": reference,
        "difference": 0.0 if difference is None else difference.difference,
        "low": math.nan if difference is None else difference.low,
        "high": math.nan if difference is None else difference.high,
        "verdict": "" if difference is None else difference.verdict,
    }


def _bits_per_byte(choice: Choice, material: Material) -> float:
    data = material.studied.data.get(str(choice.values["study"])) if material.studied else None
    return math.nan if data is None else bits_per_byte(choice, data)


def _shown(row: dict[str, Any], apart: list[str]) -> dict[str, Any]:
    """Return a row as it is read: what it comes to first, what it rests on last; a second line is a quiet one."""
    own, told = row["choice"] == row["against"], row["verdict"] not in ("", UNKNOWN)
    shown = {
        **{name: row[name] for name in apart},
        "rank": row["rank"],
        "choice": _named(row["choice"]),
        "loss": row["loss"],
        "difference": "–" if own else f"{row['difference']:+.4f}\nagainst {_named(row['against'])}",
        "interval": f"{row['low']:+.4f} to {row['high']:+.4f}" if told else "–",
        "verdict": row["verdict"],
        "group": row["groups"],
        "seeds": f"{row['seeds']}" + ("" if math.isnan(row["seed_sd"]) else f"\nspread {row['seed_sd']:.4f}"),
        "parameters": short(row["n_params"]),
    }
    if row["n_params_active"] < row["n_params"]:
        shown["parameters"] += f"\n{short(row['n_params_active'])} active"
    if not math.isnan(row["bits_per_byte"]):
        shown["bits a byte"] = f"{row['bits_per_byte']:.4f}"
    if not math.isnan(row["n_grams"]):
        shown["n-grams"] = f"{row['n_grams']:.4f}\n{row['loss'] / row['n_grams'] - 1:+.1%}"
    return shown


def _said(ranking: Ranking, apart: str) -> list[str]:
    """Say in words which is best, what is not told apart from it, and what is better or worse than the base."""
    of = f"{apart[0].upper()}{apart[1:]}: " if apart else ""
    cells = [each.cell for each in ranking.choices]
    if len(cells) == 1:
        return [f"{of}{_named(cells[0])} stands alone."]
    if ranking.differences[0].verdict == UNKNOWN:
        return [f"{of}{_named(cells[0])} has the lowest loss; whether by more than chance cannot be told: "
                f"{ranking.differences[0].why}."]  # fmt: skip
    best, *alike = [each.cell for each in ranking.choices if 0 in each.group]
    if len(alike) + 1 == len(cells):
        said = [f"{of}no two of the {len(cells)} choices are told apart."]
    elif alike:
        said = [f"{of}{_names([best, *alike])} are best and not told apart from each other."]
    else:
        said = [f"{of}{_named(best)} is best, and told apart from the next."]
    return said if cells[0] == _reference(ranking) or BASE not in cells else [*said, *_against_base(ranking)]


def _against_base(ranking: Ranking) -> list[str]:
    sides: dict[str, list[str]] = {"better": [], "worse": [], "not told apart from it": []}
    for each in _from_reference(ranking):
        real = each.verdict == DIFFERENT
        side = "not told apart from it" if not real else "better" if each.difference < 0 else "worse"
        sides[side].append(each.b)
    parts = [f"{side}: {_names(cells)}" for side, cells in sides.items() if cells]
    return [f"Against {BASE}, {'; '.join(parts)}."]


def _apart(found: list[Ranking]) -> str:
    tasks = "; ".join(f"{each.task} ({several(len(each.choices), 'choice')})" for each in found)
    return (
        f"Losses of {len(found)} tasks, ranked apart: {tasks}. A loss says how well one task is done; of another it is "
        "of unlike tokens, given unlike things, in bits a byte too: what a hidden token costs once all around it is "
        "known says nothing of what a text costs. Compare what each does with the n-gram baseline of its own task"
    )


def _names(cells: list[str]) -> str:
    names = [_named(each) for each in cells]
    more = len(names) - _MOST_NAMED
    return listed(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMED])} and {more} more"


def _cut(name: str) -> str:
    """Return a name that leaves a figure room."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _named(cell: str) -> str:
    return cell.replace(",", ", ")
