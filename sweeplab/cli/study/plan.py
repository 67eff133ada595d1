"""`sweeplab study plan`: what a study would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sweeplab.cli.options import AllowPlugins, AsJson, Lab, Name, Overrides, StudyFile
from sweeplab.cli.printing import console, print_found, print_rows, say, say_warnings, workers_in_words
from sweeplab.formatting import bytes_in_words, duration

if TYPE_CHECKING:
    from sweeplab.study.plan import CellPlan, Plan


def plan(
    file: StudyFile,
    override: Overrides = None,
    name: Name = None,
    allow_plugins: AllowPlugins = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would do, without training.

    Its cells with sizes and costs, what is searched as Optuna sees it, and what would run where.

    \b
    $ sweeplab study plan studies/small.yaml
    """
    from sweeplab import load_study

    found = load_study(file, lab=lab, name=name, overrides=override or (), allow_plugins=allow_plugins).plan()
    print_found(found, as_json, _print_plan)


def _print_plan(plan: Plan) -> None:
    data = plan.data
    console().print(
        f"[bold]{plan.name}[/]  {data.corpus}/{data.tokenizer}: vocabulary of {data.vocab_size}, "
        f"{data.train_tokens:,} training and {data.val_tokens:,} validation tokens\n",
        soft_wrap=True,
    )
    repeated = any(len(each.seeds) > 1 for each in plan.cells)
    print_rows([_row(each, repeated) for each in plan.cells], text=("cell",))
    say()
    for line in _lines(plan):
        say(line)
    say_warnings(plan.warnings)


def _row(cell: CellPlan, repeated: bool) -> dict[str, str | int]:
    return {
        "cell": cell.cell,
        "params": f"{cell.n_params:,}",
        "non-embedding": f"{cell.n_params_non_embedding:,}",
        "tokens per run": f"{cell.train_tokens:,}",
        "FLOPs per run": f"{cell.train_flops:.2e}",
        "memory per run": bytes_in_words(cell.memory_bytes),
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
        yield f"excluded cell {values}: breaks {point['reason']}"
    for source in plan.warm_start:
        yield f"warm start: {source.trials} trials of {source.source}"
    yield f"sampler {plan.sampler}, pruner {plan.pruner}"
    ends = [f"{plan.trials} trials, {plan.runs} runs"] if plan.trials is not None else []
    if (seconds := plan.budget.time) is not None:
        ends.append(duration(seconds))
    if (flops := plan.budget.flops) is not None:
        ends.append(f"{flops:.3g} FLOPs")
    yield f"ends after {' or '.join(ends)}"
    if plan.train_tokens is not None:
        most = f"{plan.train_tokens:.3g} tokens and {plan.train_flops:.3g} FLOPs"
        yield f"at most {most}: pruning and patience save some"
    yield workers_in_words(plan)
    yield f"checkpoints take up to {bytes_in_words(plan.checkpoint_bytes)}"
