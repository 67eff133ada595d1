"""A study: its file, its search space, and what comes of it."""
