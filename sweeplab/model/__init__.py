"""Stacked transformers and their accounting. Nothing here knows Optuna, MLflow or the command line."""
