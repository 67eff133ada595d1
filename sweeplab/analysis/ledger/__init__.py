"""Forecasts that are sealed before their runs exist, and scored once these have ended."""
