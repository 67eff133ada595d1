"""A sweep with Ray Tune: a trial an actor of one CPU, MLflow logged to by Tune's own callback."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from sweeplab.hyperparameters import Hyperparameters


def run(
    values: Hyperparameters,
    rates: list[float],
    train_tokens: np.ndarray,
    val_tokens: np.ndarray,
    folder: Path,
) -> float:
    """Train a run a learning rate, as many at a time as there are cores; return the seconds from the first one on."""
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0"}
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    n_workers = os.cpu_count() or 1
    paths = os.pathsep.join(str(Path(__file__).parents[each]) for each in (2, 3))
    environment = {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=n_workers, include_dashboard=False, logging_level="error", runtime_env=environment)

    def trainable(config: dict[str, float]) -> None:
        import torch
        from references import serial_loop

        torch.set_num_threads(1)

        def on_evaluation(iteration: int, val_loss: float, train_loss: float) -> None:
            tune.report({"val_loss": val_loss, "train_loss": train_loss, "iteration": iteration})

        given = values.replace(learning_rate=config["learning_rate"])
        serial_loop.train(given, train_tokens, val_tokens, on_evaluation)

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="tune", save_artifact=False)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"learning_rate": tune.grid_search(rates)},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min", reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), callbacks=[callback], verbose=0),
    )
    started = time.perf_counter()
    try:
        results = tuner.fit()
        seconds = time.perf_counter() - started
        assert not results.errors and len(results) == len(rates), results.errors
    finally:
        ray.shutdown()
    return seconds
