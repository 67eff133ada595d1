"""Training the trials: runner, worker, engines, supervisor."""
