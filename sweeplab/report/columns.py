"""What the columns of a study's runs and curves are called on an axis, with their units."""

from __future__ import annotations

from sweeplab.hyperparameters import TABLE

# Columns of the runs that are measured or computed, with their axis titles.
FACTS = {
    "n_params": "parameters",
    "n_params_active": "parameters that a token meets",
    "n_params_non_embedding": "parameters without embeddings",
    "train_tokens": "training tokens",
    "train_flops": "training FLOPs",
    "wall_seconds": "wall time (s)",
}
LOSSES = {
    "best_val_loss": "validation loss (nats/token)",
    "final_val_loss": "final validation loss (nats/token)",
}
CURVES = {
    "val_loss": "validation loss (nats/token)",
    "train_loss": "training loss (nats/token)",
    "bits_per_byte": "validation loss (bits/byte)",
    "exact_match": "targets found whole (share)",
    "pseudo_perplexity": "pseudo-perplexity, a token hidden alone",
    "expert_use_max": "largest share of one expert, in the worst layer",
    "expert_use_entropy": "evenness of the experts' use, in the worst layer",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
}
PROGRESS = {"train_tokens": "training tokens", "iteration": "iteration"}
# What a law reads, from a study or any table.
ROLES = {
    "params": "parameters N",
    "tokens": "training tokens D",
    "flops": "training FLOPs C",
    "loss": "loss",
}


def title_of(column: str) -> str:
    """Return a size's axis title."""
    row = TABLE.get(column)
    if row is None:
        return FACTS.get(column, column)
    return f"{column} ({row.unit})" if row.unit else column
