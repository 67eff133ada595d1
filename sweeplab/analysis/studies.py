"""The runs of one study or several as one table, with the specs and data needed to count them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.analysis.points import curves_of_study, study_points, unit_of
from sweeplab.analysis.table import curves_table, runs_table
from sweeplab.analysis.trials import StudyDesign
from sweeplab.errors import BadInput, Problem
from sweeplab.lab.listing import find_study, read_spec
from sweeplab.laws.columns import rows_where
from sweeplab.laws.conventions import Conventions
from sweeplab.laws.points import Points
from sweeplab.study.search import Derived

if TYPE_CHECKING:
    import pandas as pd

    from sweeplab.laws.compute_optimal.envelope import Curves
    from sweeplab.study.spec import StudySpec


@dataclass(frozen=True)
class Studies:
    """The runs of the studies, one row per run, and each study's spec, data and baselines (by cell) by name."""

    runs: pd.DataFrame
    specs: Mapping[str, StudySpec]
    data: Mapping[str, Mapping[str, Any]]
    baselines: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def designs(self) -> dict[str, StudyDesign]:
        """Return each study's grid and search space."""
        return {
            name: StudyDesign.of(spec, self.data[name].get("train_tokens"))
            for name, spec in self.specs.items()
        }

    @property
    def design(self) -> StudyDesign:
        """Return the union of the studies' grids and search spaces."""
        designs = self.designs.values()
        grid = dict.fromkeys(name for each in designs for name in each.grid)
        return StudyDesign(tuple(grid), dict(ChainMap(*(dict(each.search) for each in designs))))

    def points(
        self, columns: Mapping[str, str] | None = None, conventions: Conventions | None = None
    ) -> Points:
        """Return the points of all studies, counted by the conventions.

        Raises:
            BadInput: the errors of `study_points` and of `settled`.
        """
        chosen = self.settled(conventions)
        return replace(study_points(self.runs, columns, chosen), is_searched=self.is_searched)

    def only(self, where: str) -> Studies:
        """Return the studies with the runs in which an expression holds; all of them if it is empty.

        Raises:
            BadInput: the errors of `rows_where`.
        """
        return replace(self, runs=rows_where(self.runs, where, " and ".join(self.specs))) if where else self

    @property
    def is_searched(self) -> bool:
        """Return whether any cell's trials are drawn from a search."""
        entries = (each for design in self.designs.values() for each in design.search.values())
        return any(not isinstance(each, Derived) for each in entries)

    def settled(self, conventions: Conventions | None = None) -> Conventions:
        """Return the conventions, completed by the studies' own choice of best or final.

        Raises:
            BadInput: the studies choose differently, or were trained on different text or tokens.
        """
        chosen = conventions or Conventions()
        self._check_comparable(chosen)
        own = {spec.objective.at for spec in self.specs.values()}
        if not chosen.at and len(own) > 1:
            problem = Problem(
                "the studies value a run by different evaluations", "--count at=best or at=final"
            )
            raise BadInput(problem)
        return chosen if chosen.at else replace(chosen, at=own.pop())

    def curves(self, lab: Path, metric: str) -> pd.DataFrame:
        """Return the curves of a metric; for several studies with a column `study`.

        Raises:
            TrackingUnavailable: tracking does not answer.
        """
        import pandas as pd

        tables = [curves_table(lab, name, spec.track.uri, [metric]) for name, spec in self.specs.items()]
        if len(tables) == 1:
            return tables[0]
        named = zip(self.specs, tables, strict=True)
        return pd.concat([table.assign(study=name) for name, table in named], ignore_index=True)

    def loss_curves(self, lab: Path, conventions: Conventions) -> Curves:
        """Return the validation curves of a single study; several studies have no curves in common.

        Raises:
            BadInput: no run has ended.
            TrackingUnavailable: tracking does not answer.
        """
        import pandas as pd

        table = self.curves(lab, "val_loss") if len(self.specs) == 1 else pd.DataFrame()
        return curves_of_study(self.runs, table, conventions)

    def check_comparable(self) -> None:
        """Raise unless the studies' losses may be compared.

        Raises:
            BadInput: they were trained on different text, or on other tokens of it, or value trials by other metrics
                or evaluations.
        """
        self._check_comparable(Conventions(), "`study diff` compares them in bits per byte")
        objectives = {name: spec.objective for name, spec in self.specs.items()}
        if len({(each.metric, each.at) for each in objectives.values()}) > 1:
            said = [f"{name} by {each.metric} ({each.at})" for name, each in objectives.items()]
            raise BadInput(f"the studies value their trials differently: {', '.join(said)}")

    def _check_comparable(
        self, conventions: Conventions, otherwise: str = "--count loss=bits-per-byte can"
    ) -> None:
        """Refuse losses on different text; on one text, tokens may differ if the loss is per byte."""
        digest = "text_digest" if conventions.loss == "bits-per-byte" else "token_digest"
        first, *others = self.data
        for name in others:
            here, there = self.data[name], self.data[first]
            if here[digest] == there[digest]:
                continue
            same_text = here["text_digest"] == there["text_digest"]
            what = "tokens" if same_text else "text"
            hint = f"; of one text, {otherwise}" if same_text and "best_bits_per_byte" in self.runs else ""
            differ = f"studies {first} and {name} were trained on different {what}"
            raise BadInput(f"{differ}: losses in {unit_of(self.runs)} cannot be compared{hint}")


def read_studies(lab: Path | None, names: Sequence[str]) -> Studies:
    """Return the studies of these names, each once.

    Raises:
        BadInput: there is no such study, or its tracking is incomplete.
        TrackingUnavailable: tracking does not answer.
    """
    import pandas as pd

    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"study {repeated[0]!r} is named twice")
    folders = {name: find_study(lab, name) for name in names}
    specs = {name: read_spec(folder) for name, folder in folders.items()}
    tables = [runs_table(folders[name].lab, name, spec.track.uri) for name, spec in specs.items()]
    runs = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    data = {name: folder.read(folder.data_file) for name, folder in folders.items()}
    return Studies(runs, specs, data, {name: folder.baselines for name, folder in folders.items()})
