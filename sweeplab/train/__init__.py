"""The trainer: it trains a stack of runs and returns their records. It imports neither Optuna nor MLflow."""
