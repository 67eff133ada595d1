"""The fixtures of a study small enough to train in a second."""

from tiny_study import dataset, opened, tiny, work

__all__ = ["dataset", "opened", "tiny", "work"]
