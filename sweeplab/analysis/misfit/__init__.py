"""Whether the form of a law is right."""
