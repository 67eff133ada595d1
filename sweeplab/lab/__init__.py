"""What a lab holds: its studies, their state and best trials, and operations on a study as a whole."""
