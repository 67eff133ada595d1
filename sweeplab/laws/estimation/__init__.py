"""One law fitted to one table, and how far its numbers may be believed."""
