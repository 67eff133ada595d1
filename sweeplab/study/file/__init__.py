"""The study file: YAML in, a typed study out, and back."""
