"""Use a trained run: open it, generate text, evaluate it, look at its attention."""
