"""Forecasts that are sealed before their runs start, and scored once these have ended."""
