"""The trainer: a stack of runs in, records out. It knows neither Optuna nor MLflow; whoever calls it decides."""
