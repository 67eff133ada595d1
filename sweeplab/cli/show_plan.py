"""A plan as a person reads it."""

from __future__ import annotations

from sweeplab.cli.tables import console as make_console
from sweeplab.cli.tables import print_rows
from sweeplab.study.plan import Plan


def print_plan(plan: Plan) -> None:
    """Print a study's preview."""
    console = make_console()
    data = plan.data
    console.print(
        f"[bold]{plan.name}[/]  {data['corpus']}/{data['tokenizer']}: {data['vocab_size']} symbols, "
        f"{data['train_tokens']:,} training and {data['val_tokens']:,} validation tokens"
    )
    print_rows(
        [
            {
                "cell": each.cell,
                "params": f"{each.n_params:,}",
                "non-embedding": f"{each.n_params_non_embedding:,}",
                "tokens a run": f"{each.train_tokens:,}",
                "FLOPs a run": f"{each.train_flops:.2e}",
                "memory a run": f"{each.memory_bytes / 1e6:,.0f} MB",
                "stack": each.stack,
                "valid samples": f"{each.valid_share:.0%}",
            }
            for each in plan.cells
        ]
    )
    console.print()
    searches = {tuple(each.search.items()) for each in plan.cells}
    for cell in plan.cells if len(searches) > 1 else plan.cells[:1]:
        where = f" in {cell.cell}" if len(searches) > 1 else ""
        for name, distribution in cell.search.items():
            console.print(f"search {name}{where}: {distribution}", markup=False)
    for point in plan.excluded:
        console.print(f"no cell: {point}", markup=False)
    trials = f"{plan.trials} trials, {plan.runs} runs" if plan.trials is not None else "trials until time or FLOPs end"
    cost = f", {plan.train_tokens:.3g} tokens, {plan.train_flops:.3g} FLOPs" if plan.train_flops is not None else ""
    console.print(f"{trials}{cost} (before pruning and early stopping)")
    threads = plan.workers[0]["threads"] if plan.workers else 0
    console.print(f"sampler {plan.sampler}, pruner {plan.pruner}", markup=False)
    console.print(f"{len(plan.workers)} workers of {threads} thread(s) on {plan.device}, {plan.dtype}")
    console.print(f"checkpoints take up to {plan.checkpoint_bytes / 1e6:,.0f} MB")
    for warning in plan.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
