"""What people glue together today: Optuna's optimize, MLflow's log_metric and an eager training loop."""

import math
import time

import mlflow
import numpy as np
import optuna
import torch
from references.plain_gpt import PlainGPT

from sweeplab.data.batches import generator_key
from sweeplab.data.objectives import make_objective
from sweeplab.model.layout import Layout
from sweeplab.model.shape import ModelShape
from sweeplab.train.run import learning_rate


def plain_model(values):
    """Return a plain module with the initial weights that a run of these values has."""
    shape = ModelShape.of(values)
    layout = Layout(shape)
    views = layout.views(layout.initial_row(generator_key(values.seed, "init"))[None])
    model = PlainGPT(shape)
    model.take({name: view[0] for name, view in views.items()})
    return model


def windows(batch):
    """Return a batch's windows [B, T + 1]."""
    return torch.from_numpy(np.concatenate([batch.inputs[:, :1], batch.targets], axis=1))


def trainer(values, train_tokens, compiled=False):
    """Return a model, and what trains it by the step of an iteration, with fused AdamW, and returns its loss."""
    model = plain_model(values)
    loss_of = torch.compile(model.loss) if compiled else model.loss
    optimizer = torch.optim.AdamW(
        model.groups(values.weight_decay),
        lr=values.learning_rate, betas=values.betas, eps=values.eps, fused=True,
    )  # fmt: skip
    batches = make_objective(train_tokens, values)

    def step(iteration):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(values, iteration)
        loss = loss_of(windows(batches.training(values.seed, iteration)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), values.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return model, step


def train(
    values,
    train_tokens,
    val_tokens,
    on_evaluation=lambda *_: None,
    compiled=False,
):
    """Train one run and return its validation losses."""
    model, step = trainer(values, train_tokens, compiled)
    val_batches = make_objective(val_tokens, values)
    evaluation = [
        (torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets))
        for batch in val_batches.evaluation(values.evaluated_tokens)
    ]
    n_targets = [int((targets >= 0).sum()) for _, targets in evaluation]
    losses, total, count = [], 0.0, 0
    for iteration in range(values.max_iters + 1):
        if iteration % values.eval_interval == 0 or iteration == values.max_iters:
            with torch.no_grad():
                found = [model.loss_of(*batch).item() for batch in evaluation]
                losses.append(
                    sum(map(math.prod, zip(found, n_targets, strict=True))) / sum(n_targets)
                )
            on_evaluation(iteration, losses[-1], total / max(1, count))
            total, count = 0.0, 0
        if iteration == values.max_iters:
            break
        total, count = total + step(iteration), count + 1
    return losses


def run(values, rates, train_tokens, val_tokens, folder, compiled=False):
    """Train a run a learning rate, one after the other, with Optuna and MLflow on SQLite; return the seconds."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.set_experiment("serial")
    study = optuna.create_study(storage=f"sqlite:///{folder / 'optuna.db'}")
    for rate in rates:
        study.enqueue_trial({"learning_rate": rate})

    def objective(trial):
        rate = trial.suggest_float("learning_rate", 1e-5, 1.0, log=True)
        with mlflow.start_run():
            given = values.replace(learning_rate=rate)
            mlflow.log_params({name: str(value) for name, value in given.as_dict().items()})

            def on_evaluation(iteration, val_loss, train_loss):
                mlflow.log_metric("val_loss", val_loss, step=iteration)
                if iteration:
                    mlflow.log_metric("train_loss", train_loss, step=iteration)
                trial.report(val_loss, iteration)

            best = min(train(given, train_tokens, val_tokens, on_evaluation, compiled))
            assert math.isfinite(best)
        return best

    started = time.perf_counter()
    study.optimize(objective, n_trials=len(rates))
    return time.perf_counter() - started
