"""Stacked transformers, and formulas for their parameters and FLOPs. Imports no Optuna, MLflow or command line."""
