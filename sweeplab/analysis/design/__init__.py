"""Which runs to make next."""
