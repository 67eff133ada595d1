"""Steer a study from other processes, and follow it."""
