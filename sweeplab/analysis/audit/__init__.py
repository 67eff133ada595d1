"""The audit of a study: what in its counting and training moves the exponents of its laws."""
