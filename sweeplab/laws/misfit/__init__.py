"""Tests of the form of a law."""
