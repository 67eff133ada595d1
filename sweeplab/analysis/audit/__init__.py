"""The audit of a study: what may make its exponents wrong."""
