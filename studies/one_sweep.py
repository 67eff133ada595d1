"""One sweep by Optuna, MLflow and torch alone: what sweeplab replaces, and the shortest way to understand it.

`python studies/one_sweep.py train.txt val.txt` trains what this study trains, to the same losses (its test proves it):

    name: one-sweep
    data: {corpus: text, tokenizer: char, path: text.txt}
    fixed: {n_layer: 2, n_head: 2, n_embd: 32, block_size: 32, batch_size: 8, max_iters: 200, warmup_iters: 20,
            dropout: 0.0, eval_interval: 50, eval_full: true, device: cpu, dtype: float32}
    search: {learning_rate: [1e-6, 1e-3, 1e-2]}
    budget: {trials_per_cell: 3}
    sampler: grid
    pruner: {type: threshold, upper: 3.0, n_warmup_steps: 50}

Beside each part stands what the program has in its place. What has no part here: a plan before the first trial, trials
of one shape in a stack, workers that share them, kills and full disks that lose nothing, cells, reports and laws.
"""

import hashlib
import math
import sys
from pathlib import Path

import mlflow
import numpy as np
import optuna
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, LENGTH, BATCH, STEPS, WARMUP, EVERY = 2, 2, 32, 32, 8, 200, 20, 50
RATES = [1e-6, 1e-3, 1e-2]


def key(purpose: str, seed: int = 0) -> int:
    """Return the key of a run's random numbers. (data/batches.py)"""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big") >> 1


class Decoder(nn.Module):
    """A decoder, with weights drawn in the order of the forward pass. (model/: any shape, many runs at once)"""

    def __init__(self, n_tokens: int) -> None:
        super().__init__()
        options = {
            "dropout": 0.0,
            "activation": F.gelu,
            "batch_first": True,
            "norm_first": True,
        }
        self.tokens, self.positions = nn.Embedding(n_tokens, WIDTH), nn.Embedding(LENGTH, WIDTH)
        blocks = (
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **options)
            for _ in range(LAYERS)
        )
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(WIDTH)
        random = torch.Generator().manual_seed(key("init"))
        for name, weight in self.named_parameters():
            weight.data.fill_(float("norm" in name and "weight" in name))
            if weight.ndim > 1:  # matrices are drawn as [inputs, outputs]
                view = weight.data.T if "blocks" in name else weight.data
                is_last = name.endswith(("out_proj.weight", "linear2.weight"))
                std = 0.02 / math.sqrt(2 * LAYERS) if is_last else 0.02
                view.copy_(torch.empty(view.shape).normal_(0.0, std, generator=random))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token. (model/transformer.py, blocks.py)"""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.norm(x) @ self.tokens.weight.T


@torch.no_grad()
def val_loss(model: Decoder, val: Tensor) -> float:
    """Return the mean loss over all tokens; the last window is moved back. (train/evaluating.py)"""
    total = 0.0
    for start in range(0, len(val) - 1, LENGTH):
        at = min(start, len(val) - 1 - LENGTH)
        logits, targets = (
            model(val[None, at : at + LENGTH])[0, start - at :],
            val[start + 1 : at + LENGTH + 1],
        )
        total += F.cross_entropy(logits, targets, reduction="sum").item()
    return total / (len(val) - 1)


def train(trial: optuna.Trial, train_split: Tensor, val_split: Tensor, n_tokens: int) -> float:
    """Train a trial and return its lowest loss. (sweep/loop.py; a step: train/stack.py; its records: records/)"""
    peak, losses, model = (
        trial.suggest_float("learning_rate", min(RATES), max(RATES)),
        [],
        Decoder(n_tokens),
    )
    mlflow.log_param("learning_rate", peak)
    weights = {
        decays: [w for w in model.parameters() if (w.ndim > 1) == decays]
        for decays in (True, False)
    }
    groups = [
        {"params": params, "weight_decay": 0.1 * decays} for decays, params in weights.items()
    ]
    optimizer, floor = torch.optim.AdamW(groups, betas=(0.9, 0.95)), min(1e-5, peak)
    words = np.random.Philox(key=key("batches")).random_raw(STEPS * BATCH) >> np.uint64(11)
    starts = torch.from_numpy((words * ((len(train_split) - LENGTH) / 2**53)).astype(np.int64))
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            losses.append(val_loss(model, val_split))
            mlflow.log_metric("val_loss", losses[-1], step=step)
            trial.report(losses[-1], step)
            if step == STEPS:
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        share = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
        rate = (
            peak * (step + 1) / (WARMUP + 1)
            if step < WARMUP
            else floor + (peak - floor) * share
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        windows = train_split[starts[step * BATCH :][:BATCH, None] + torch.arange(LENGTH + 1)]
        F.cross_entropy(
            model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return min(losses)


def sweep(train_text: str, val_text: str, folder: Path) -> optuna.Study:
    """Train a trial for each learning rate. (sweep/trials/, and sweep/ for several workers)"""
    characters = {
        character: at for at, character in enumerate(sorted({*train_text, *val_text}))
    }
    splits = [
        torch.tensor([*map(characters.__getitem__, text)]) for text in (train_text, val_text)
    ]
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment("one-sweep")
    sampler = optuna.samplers.GridSampler({"learning_rate": RATES}, seed=0)
    pruner = optuna.pruners.ThresholdPruner(upper=3.0, n_warmup_steps=EVERY)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/optuna.db", sampler=sampler, pruner=pruner
    )

    def objective(trial: optuna.Trial) -> float:
        with mlflow.start_run():
            return train(trial, *splits, len(characters))

    study.optimize(objective, n_trials=len(RATES))
    return study


if __name__ == "__main__":
    print(sweep(*(Path(file).read_text() for file in sys.argv[1:3]), Path()).best_trial)
