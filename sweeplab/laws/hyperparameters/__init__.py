"""How the best values of searched hyperparameters follow the size: optima of cells, their law, and predictions."""
