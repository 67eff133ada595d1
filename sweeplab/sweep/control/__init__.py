"""Asking something of a running study, and following it."""
