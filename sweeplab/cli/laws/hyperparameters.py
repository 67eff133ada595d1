"""`sweeplab laws hyperparameters`: how the best learning rate, batch size … follow the size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sweeplab.cli.laws import Count, Source, Where, is_file, print_numbers, studies_from
from sweeplab.cli.options import Lab, option
from sweeplab.cli.printing import Answer, cell_text, interval, print_rows, say, say_warnings, with_interval
from sweeplab.formatting import several

if TYPE_CHECKING:
    from sweeplab.laws.hyperparameters.runs import SearchedRuns

_MOST_CELLS = 40


def hyperparameter_laws(
    source: Source,
    columns: Annotated[
        str | None,
        option("NAME=COLUMN,…", "Columns for params, tokens, loss, learning_rate, batch_size, n_embd, …."),
    ] = None,
    at: Annotated[
        str | None, option("SIZE=NUMBER,…", "Predict the best values at N=…,D=… or n_embd=…,n_layer=….")
    ] = None,
    count: Count = None,
    where: Where = None,
    lab: Lab = None,
) -> Answer:
    """Fit how the best learning rate follows the size.

    All sizes are fitted at once: the best values of each with intervals, their law with a verdict on every number, how
    flat the optimum is, and whether one value does for all sizes.

    \b
    $ sweeplab laws hyperparameters small
    $ sweeplab laws hyperparameters runs.csv --columns learning_rate=lr
    $ sweeplab laws hyperparameters runs.csv --at N=1e9,D=2e10
    $ sweeplab laws hyperparameters small --at n_embd=256,n_layer=6 --json
    """
    from sweeplab.laws.hyperparameters.assessment import assess_hyperparameters, predict_values
    from sweeplab.laws.hyperparameters.runs import parse_at

    target = parse_at(at) if at else None
    laws = assess_hyperparameters(_read(source, columns, count, lab, where))
    prediction = predict_values(laws, target) if target else None
    return laws.as_dict() | {"prediction": prediction}, _print_laws


def _read(
    source: str, columns: str | None, count: str | None, lab: Path | None, where: str | None
) -> SearchedRuns:
    from sweeplab.analysis.studies import file_runs, tuned_runs
    from sweeplab.laws.columns import Conventions, parse_conventions
    from sweeplab.laws.hyperparameters.runs import parse_searched

    roles, named = parse_searched(columns) if columns else ({}, {})
    conventions = parse_conventions(count) if count else Conventions()
    if is_file(source):
        return file_runs(Path(source), roles, named, where or "", conventions)
    studies = studies_from(source, lab).only(where or "")
    settled = studies.settled(conventions)
    return tuned_runs(studies.runs, source, studies.design, settled, roles, named)


def _print_laws(laws: dict[str, Any]) -> None:
    say(
        f"{several(laws['n_trials'], 'trial')} in {several(laws['n_cells'], 'cell')}; "
        f"{several(laws['n_used'], 'trial')} within {laws['window']:.1%} of the optimum are fitted; "
        f"noise of {laws['noise']:.2%}"
    )
    if dropped := [f"{n} {why}" for why, n in laws["dropped"].items() if n]:
        say("left out: " + ", ".join(dropped))
    say("; ".join(f"{name}: {what}" for name, what in laws["conventions"].items()))
    for name, searched in laws["searched"].items():
        say(f"\n{name}", "bold")
        rows = [
            {
                **{
                    size: cell_text(cell[size])
                    for size in ("n_layer", "n_embd", "params", "tokens")
                    if size in cell
                },
                "best": best["value"],
                "low": cell_text(best["low"]),
                "high": cell_text(best["high"]),
                "values": best["n_values"],
                "edge": best["edge"] or None,
                "tuned loss": cell["tuned_loss"],
            }
            for cell in laws["cells"][:_MOST_CELLS]
            for best in [cell["best"][name]]
        ]
        print_rows(rows, text=("edge",))
        if len(laws["cells"]) > _MOST_CELLS:
            say(f"… and {len(laws['cells']) - _MOST_CELLS} more; --json has all")
        say()
        _print_searched(name, searched)
    if laws["prediction"]:
        _print_prediction(laws["prediction"])
    say_warnings(laws["warnings"])


def _print_searched(name: str, searched: Mapping[str, Any]) -> None:
    print_numbers(searched["numbers"])
    say(f"flat: the loss is 0.25% worse a factor {cell_text(searched['flat_factor'])} from the best {name}")
    for constant in searched["constant"]:
        drift = "drifts" if constant["drifts"] else "no drift is seen"
        say(
            f"over {constant['over']}: {drift} (a factor {cell_text(constant['factor'])}, "
            f"{interval(constant)}, from the smallest to the largest); "
            f"keeping the smallest's costs {constant['cost_low']:.2%} to {constant['cost_high']:.2%}: "
            f"one {name} {constant['verdict']}"
        )
    for flag in searched["flags"]:
        say(f"warning: {flag}", "yellow")


def _print_prediction(prediction: Mapping[str, Any]) -> None:
    asked = ", ".join(f"{name}={cell_text(value)}" for name, value in prediction["at"].items())
    beyond = {name: factor for name, factor in prediction["beyond"].items() if factor > 1.001}
    away = ", ".join(f"{factor:.3g} times outside of {name}" for name, factor in beyond.items())
    say(f"\nat {asked}" + (f" ({away})" if away else ""), "bold")
    rows = [
        {
            "": name,
            "best": entry["value"],
            "low": cell_text(entry["low"]),
            "high": cell_text(entry["high"]),
            "within 0.1%": " to ".join(map(cell_text, entry.get("band", ()))) or None,
            "verdict": entry["verdict"],
            "why": entry["why"],
        }
        for name, entry in prediction["best"].items()
    ]
    print_rows(rows, text=("", "verdict", "why"))
    say(f"expected regret of these values: {prediction['regret']:.3%} of the loss")
    loss = prediction["loss"]
    if loss["value"] is None:
        say(f"tuned loss: {loss['why']}")
    else:
        say(f"tuned loss: {with_interval(loss)}, {loss['verdict']}, by {loss['law']}")
    with_values = prediction["asked"]
    if with_values:
        what = with_values["why"] or f"{with_values['excess']:.2%} above the tuned loss"
        if with_values["loss"] is not None:
            what += f", {cell_text(with_values['loss'])}"
        say(f"with the values named: {what}")
