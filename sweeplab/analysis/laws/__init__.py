"""Scaling laws: the published forms, their fits, and how far each number may be believed."""
