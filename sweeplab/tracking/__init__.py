"""Where a study's numbers and files are kept for people to browse; the only package that imports MLflow."""
