"""The fixtures of a study small enough to train in a second."""

from tiny_study import dataset, opened, planned, tiny

__all__ = ["dataset", "opened", "planned", "tiny"]
