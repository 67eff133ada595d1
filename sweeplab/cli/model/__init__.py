"""`sweeplab model`: what a model is made of, and what it computes."""
