"""Using a trained run: open, generate, evaluate, attend."""
