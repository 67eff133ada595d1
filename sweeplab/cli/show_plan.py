"""A plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator

from sweeplab.cli.tables import console as make_console
from sweeplab.cli.tables import print_rows
from sweeplab.cli.words import duration, workers_in_words
from sweeplab.formatting import bytes_in_words
from sweeplab.study.plan import CellPlan, Plan


def print_plan(plan: Plan) -> None:
    """Print a study's preview."""
    console = make_console()
    data = plan.data
    console.print(
        f"[bold]{plan.name}[/]  {data['corpus']}/{data['tokenizer']}: {data['vocab_size']} symbols, "
        f"{data['train_tokens']:,} training and {data['val_tokens']:,} validation tokens\n",
        soft_wrap=True,
    )
    repeated = any(len(each.seeds) > 1 for each in plan.cells)
    print_rows([_row(each, repeated) for each in plan.cells], text=("cell",))
    console.print()
    for line in _lines(plan):
        console.print(line, markup=False, soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _row(cell: CellPlan, repeated: bool) -> dict[str, str | int]:
    return {
        "cell": cell.cell,
        "params": f"{cell.n_params:,}",
        "non-embedding": f"{cell.n_params_non_embedding:,}",
        "tokens a run": f"{cell.train_tokens:,}",
        "FLOPs a run": f"{cell.train_flops:.2e}",
        "memory a run": bytes_in_words(cell.memory_bytes),
        "stack": cell.stack,
        "valid samples": f"{cell.valid_share:.0%}",
        **({"seeds": len(cell.seeds)} if repeated else {}),
    }


def _lines(plan: Plan) -> Iterator[str]:
    searches = {tuple(each.search.items()) for each in plan.cells}
    for cell in plan.cells if len(searches) > 1 else plan.cells[:1]:
        where = f" in {cell.cell}" if len(searches) > 1 else ""
        for name, distribution in cell.search.items():
            yield f"search {name}{where}: {distribution}"
    for point in plan.excluded:
        values = ",".join(f"{name}={value}" for name, value in point.items() if name != "reason")
        yield f"no cell {values}: breaks {point['reason']}"
    for source in plan.warm_start:
        yield f"warm start: {source['trials']} trials of {source['from']}"
    yield f"sampler {plan.sampler}, pruner {plan.pruner}"
    ends = [f"{plan.trials} trials, {plan.runs} runs"] if plan.trials is not None else []
    if (seconds := plan.budget["time"]) is not None:
        ends.append(duration(seconds))
    if (flops := plan.budget["flops"]) is not None:
        ends.append(f"{flops:.3g} FLOPs")
    yield f"ends after {' or '.join(ends)}"
    if plan.train_tokens is not None:
        most = f"{plan.train_tokens:.3g} tokens and {plan.train_flops:.3g} FLOPs"
        yield f"at most {most}: pruning and patience save some"
    yield workers_in_words(plan)
    yield f"checkpoints take up to {bytes_in_words(plan.checkpoint_bytes)}"
