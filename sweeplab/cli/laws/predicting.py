"""`sweeplab laws predict` and `verify`: what a size reaches, sealed before it is trained and scored after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sweeplab.analysis.ledger import FILE_NAME, read_ledger
from sweeplab.cli.laws import Columns, Count, Law, Read, Source, Tuned, Where, read_source
from sweeplab.cli.options import Force, Lab, argument, flag, option, studies
from sweeplab.cli.printing import (
    Answer,
    cell_text,
    interval,
    print_rows,
    say,
    say_prose,
    say_warnings,
)
from sweeplab.errors import BadInput, conflict
from sweeplab.formatting import several
from sweeplab.laws.sentences import Facts, Plain, Point
from sweeplab.records.folders import StudyFolder, lab_folder

if TYPE_CHECKING:
    from sweeplab.analysis.predicting import Prediction
    from sweeplab.analysis.sealing import Target

_TEXT = ("size", "verdict", "forecast", "interval", "outcome")


def predict(
    source: Source,
    at: Annotated[
        str | None,
        option(
            "NAME=VALUE,…",
            "A size: of params and tokens, or of every hyperparameter of a study's grid.",
        ),
    ] = None,
    targets: Annotated[
        Path | None, option("FILE", "A study file, whose cells are the sizes.")
    ] = None,
    seal: Annotated[bool, flag("Seal it in the ledger, for `laws verify`.", "--seal")] = False,
    write: Annotated[
        Path | None, option("FILE", "Write the study file that trains the size.")
    ] = None,
    columns: Columns = None,
    count: Count = None,
    where: Where = None,
    law: Law = "auto",
    tuned: Tuned = None,
    force: Force = False,
    lab: Lab = None,
) -> Answer:
    """Predict the loss of a size, and the best values to train it with.

    The interval is that of a run: of the law, whose form may bend, and of a run's noise. A size in terms of a study's
    grid has its searched values by their laws.

    \b
    $ sweeplab laws predict small --at n_layer=2,n_embd=96 --write large.yaml
    $ sweeplab laws predict small --targets studies/small.yaml --seal
    $ sweeplab laws predict runs.csv --at params=2e8,tokens=4e9
    """
    from sweeplab.analysis import sealing
    from sweeplab.laws.assessment import assess, law_for
    from sweeplab.laws.columns import COUNTS
    from sweeplab.laws.hyperparameters.assessment import predict_values
    from sweeplab.laws.hyperparameters.runs import SHORT_NAMES, parse_at

    if at and targets:
        raise BadInput(conflict("--at", "--targets"))
    if not at and not targets:
        raise BadInput("which size? give --at NAME=VALUE,… or --targets FILE")
    read = read_source(source, columns, count, lab, where, tuned)
    answer: Plain = {"source": source, "left_out": {}, "warnings": []}
    named = {part.partition("=")[0].strip() for part in (at or "").split(",")}
    if at and read.studies and not named & {*COUNTS, *SHORT_NAMES}:
        predicted = _of_size(read, at, lab, seal or write is not None)
        answer["sizes"] = [predicted.as_dict()]
        assessed = predicted.law
        forecasts = []
        if predicted.loss:
            forecasts = [(predicted.target, predicted.loss)]
        elif seal:
            raise BadInput(f"there is no loss to seal: {predicted.why_none}")
        if write:
            from sweeplab.cli.study.manage import new_file
            from sweeplab.study.file.template import study_file

            comment = f"What `laws predict {source} --at {at}` says."
            new_file(write, study_file(predicted.spec.as_written(), [comment]), force)
            answer["study_file"] = str(write)
    elif write:
        raise BadInput("--write takes a size of a study's grid, with --at")
    else:
        asked = parse_at(at or "")
        wanted, left_out = _targets(read, asked, targets, lab)
        assessed = assess(read.points, law_for(read.points, law))
        forecasts, without = sealing.forecasts_of(assessed, wanted)
        answer["left_out"] = {**left_out, **without}
        answer["sizes"] = []
        for target, seen in forecasts:
            loss = sealing.entry_of(assessed, seen)
            answer["sizes"].append({"cell": target.words, "at": dict(target.at), "loss": loss})
        laws = read.hyperparameters() if at else None
        if laws:
            with suppress(BadInput):  # the laws are in other sizes, or hold along a path
                best = predict_values(laws, asked)
                answer["sizes"][0] |= {"values": best["best"], "regret": best["regret"]}
    if seal and assessed:
        names = tuple(read.studies.specs) if read.studies else (source,)
        home = lab_folder(lab)
        entries, answer["warnings"] = sealing.seal(
            names, read.counting, assessed, home, forecasts
        )
        answer["ledger"] = str(home / FILE_NAME)
        answer["sealed"] = [
            {"number": entry.number, "sha256": entry.sha256, **entry.forecast}
            for entry in entries
        ]
    return answer, _print_prediction


def _of_size(read: Read, at: str, lab: Path | None, is_kept: bool) -> Prediction:
    """Predict a size of a study's grid; one that is sealed or written is refused where it cannot be trained."""
    from sweeplab.analysis.predicting import predict_size
    from sweeplab.lab.listing import find_study
    from sweeplab.lab.studies import check_same_study

    assert read.studies  # only of a study
    if len(read.studies.specs) > 1:
        n_studies = several(len(read.studies.specs), "study")
        raise BadInput(f"--at {at} is a size of one study, not of {n_studies}")
    folder = find_study(lab, read.source)
    changes = [f"--at {part}" for part in at.split(",")]
    predicted = predict_size(folder, read.studies, read.points, changes, read.counting)
    if is_kept:
        check_same_study(
            predicted.spec, StudyFolder(folder.lab, predicted.spec.name), predicted.plan.data
        )
    return predicted


def _targets(
    read: Read, asked: Point, file: Path | None, lab: Path | None
) -> tuple[Sequence[Target], Mapping[str, str]]:
    """Return the points to predict, and why cells of a study have none."""
    from sweeplab.analysis import sealing
    from sweeplab.laws.columns import COUNTS
    from sweeplab.study.file.reading import read_study

    counting = read.counting
    digests = {}
    if file:
        if not read.studies:  # columns of the file, which a study does not have
            counting = replace(counting, columns={}, where="")
        return sealing.cell_targets(read_study(file), lab_folder(lab), counting)
    if read.studies:
        data = read.studies.data
        digests = {
            name: sealing.study_digest(spec, data[name]["text_digest"])
            for name, spec in read.studies.specs.items()
        }
    counts = {role: asked[role] for role in COUNTS if role in asked}
    return [sealing.point_target(read.points, counts, digests, counting)], {}


def _print_prediction(answer: Facts) -> None:
    rows = []
    for size in answer["sizes"]:
        loss = size["loss"]
        rows.append({**loss, "size": size.get("name", size["cell"]), "loss": loss["value"]})
    print_rows(rows, _TEXT, keys=("size", "loss", "low", "high", "verdict"))
    size = answer["sizes"][0]
    if len(answer["sizes"]) == 1:
        say(size["loss"]["why"])
    for name, entry in size.get("values", {}).items():
        ends = "" if entry["low"] is None else f" ({interval(entry)})"
        say(f"{name} {cell_text(entry['value'])}{ends}, {entry['verdict']}: {entry['why']}")
    left_out = [f"left out: {what}: {why}" for what, why in answer["left_out"].items()]
    for line in left_out[:3]:
        say_prose(line)
    if len(left_out) > 3:
        say(f"… and {len(left_out) - 3} more, which --json lists")
    say_warnings(answer["warnings"])
    if "sealed" in answer:
        say(f"sealed in {answer['ledger']}, last line {answer['sealed'][-1]['sha256']}")
        say(
            "publish that before the run starts, in git for example: otherwise it proves nothing to others"
        )
    if "study_file" in answer:
        say(f"next: sweeplab run {answer['study_file']}")


def verify(
    study: Annotated[
        str | None,
        argument("STUDY", "Only forecasts for this study or from it.", autocompletion=studies),
    ] = None,
    against: Annotated[
        Path | None, option("FILE", "The forecasts' table, with new rows added.")
    ] = None,
    lab: Lab = None,
) -> Answer:
    """Check the ledger, score forecasts whose runs ended, and list all.

    The first forecast of a run counts, if it was sealed before the run started. An outcome is recorded in the ledger
    when it is first known. A changed ledger ends with exit code 2.

    \b
    $ sweeplab laws verify small
    $ sweeplab laws verify --against runs.csv
    """
    from sweeplab.analysis import sealing

    home = lab_folder(lab)
    path = home / FILE_NAME
    results = sealing.verify(home, study or "", against)
    held = [outcome.is_held for outcome in results if outcome.is_held is not None]
    answer = {
        "ledger": str(path),
        "last": read_ledger(path)[-1].sha256,
        "forecasts": [outcome.as_dict() for outcome in results],
        "calibration": {"n": len(held), "held": sum(held)},
    }
    return answer, _print_scores


def _print_scores(answer: Facts) -> None:
    known = answer["calibration"]
    say(f"{known['held']} of {several(known['n'], 'scored forecast')} held")
    rows = []
    for scored in answer["forecasts"]:
        forecast, outcome = scored["forecast"], scored["state"]
        place = ", ".join(forecast["run"]["studies"] or forecast["source"]["names"])
        if scored["held"] is not None:
            outcome = "held" if scored["held"] else "missed"
        row = {
            "": scored["number"],
            "forecast": " ".join([place, *forecast["run"]["cells"][:1]]),
            "params": forecast["at"].get("params"),
            "tokens": forecast["at"].get("tokens"),
            "predicted": forecast["predicted"]["loss"],
            "interval": interval(forecast["predicted"]),
            "outcome": outcome,
            "loss": scored["loss"],
        }
        rows.append(row)
    print_rows(rows, text=_TEXT)
    for scored in answer["forecasts"]:
        if scored["why"] and scored["loss"] is None:
            say(f"{scored['number']} {scored['state']}: {scored['why']}")
    say(f"{answer['ledger']}: whole, last line {answer['last']}")
