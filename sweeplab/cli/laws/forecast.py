"""`sweeplab laws forecast`: say what a run will reach before it exists, so that it cannot be unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeplab.cli.laws.place import Ledger, ledger_file
from sweeplab.cli.laws.source import Columns, Count, Source, is_file, studies_from
from sweeplab.cli.options import AsJson, Lab

if TYPE_CHECKING:
    from sweeplab.analysis.ledger.sealing import Source as Origin
    from sweeplab.analysis.ledger.targets import Place
    from sweeplab.analysis.points import Points


def forecast(
    source: Source,
    params: Annotated[
        float | None, typer.Option(metavar="N", help="Parameters of the run to come.", show_default=False)
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(metavar="D", help="Tokens it will be trained on.", show_default=False)
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(
            metavar="C", help="FLOPs it will take.  [default: N D times the table's C/ND]", show_default=False
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Forecast all cells of this study file without a run.",
            show_default=False,
        ),
    ] = None,
    columns: Columns = None,
    count: Count = None,
    law: Annotated[
        str, typer.Option("--law", metavar="LAW", help="The law that forecasts, as in laws fit.")
    ] = "chinchilla",
    delta: Annotated[
        str, typer.Option(metavar="DELTA", help="Huber's delta in log units, auto, or least-squares.")
    ] = "auto",
    ledger: Ledger = None,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Seal what a law predicts of a run, before the run exists.

    The interval of 90% holds the law's uncertainty and a run's noise. Every entry is
    bound to all before it: laws verify shows a change, and scores what has ended.

    \b
    $ sweeplab laws forecast small --params 2e6 --tokens 1e8
    $ sweeplab laws forecast small --study studies/small.yaml
    """
    from sweeplab.analysis.fit.assessment import assess, find_law
    from sweeplab.analysis.ledger.sealing import seal
    from sweeplab.analysis.ledger.targets import CellTargets, cell_targets, point_target
    from sweeplab.cli.laws.show_ledger import print_sealed, sealed_as_dict
    from sweeplab.cli.tables import print_json
    from sweeplab.errors import BadInput
    from sweeplab.records.folders import StudyFolder, lab_folder
    from sweeplab.study.file.reading import read_study

    form, sizes = find_law(law), {"params": params, "tokens": tokens, "flops": flops}
    if study and any(sizes.values()):
        raise BadInput("--study names its cells: give it, or --params and --tokens, not both")
    points, origin, place = _read(source, columns, count, lab)
    if study:
        asked = cell_targets(read_study(study), lab_folder(lab), origin.counting)
    else:
        asked = CellTargets((point_target(points, sizes, place),))
    names = dict.fromkeys(name for each in asked.targets if each.place for name in each.place.studies)
    path = ledger_file(ledger, lab)
    folders = [StudyFolder(lab_folder(lab), name) for name in names]
    sealed = seal(path, origin, assess(points, form, delta), asked, folders)
    if as_json:
        print_json(sealed_as_dict(sealed, path))
    else:
        print_sealed(sealed, path)


def _read(
    source: str, columns: str | None, count: str | None, lab: Path | None
) -> tuple[Points, Origin, Place | None]:
    """Return the points, where they come from, and the place of a run of the same studies."""
    from sweeplab.analysis.columns import parse_columns
    from sweeplab.analysis.conventions import Conventions, parse_conventions
    from sweeplab.analysis.ledger.sealing import Source as Origin
    from sweeplab.analysis.ledger.targets import Counting, Place, study_digest
    from sweeplab.analysis.points import read_points

    asked = parse_columns(columns) if columns else {}
    conventions = parse_conventions(count) if count else Conventions()
    if is_file(source):
        counting = Counting(conventions, asked)
        return read_points(Path(source), asked, conventions), Origin((source,), True, counting), None
    studies = studies_from(source, lab)
    counting = Counting(studies.settled(conventions), asked)
    digests = {
        name: study_digest(spec, studies.data[name]["text_digest"]) for name, spec in studies.specs.items()
    }
    origin, place = Origin(tuple(studies.specs), False, counting), Place(digests, counting)
    return studies.points(asked, counting.conventions), origin, place
