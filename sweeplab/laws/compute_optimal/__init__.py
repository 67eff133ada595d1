"""The compute-optimal size, by three approaches, and what depth and width are worth."""
