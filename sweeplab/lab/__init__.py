"""What a lab holds: its studies, how each stands, its best trials, and what is done to a study as a whole."""
