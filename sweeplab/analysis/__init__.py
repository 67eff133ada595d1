"""Runs as one validated table, and what is computed from it. Nothing here logs or trains."""
