"""The trials of a study in their storage: claims, leases, commands, warm starts."""
