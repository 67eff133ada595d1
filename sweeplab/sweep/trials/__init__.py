"""A study's trials in their storage: claims, leases, commands, warm starts."""
