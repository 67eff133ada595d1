"""Steering a study from other processes, and following it."""
