"""The commands about studies: write, preview, run, control and show studies."""
