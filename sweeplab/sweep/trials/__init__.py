"""The trials of a study in their storage: claims, leases, orders, counts, warm starts."""
