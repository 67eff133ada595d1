"""Train the trials: the runner and its worker processes, and the supervisor of a study."""
