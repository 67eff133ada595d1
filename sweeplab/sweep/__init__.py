"""Carrying a study out."""
