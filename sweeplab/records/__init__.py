"""A study's files on disk: its folders, and typed records with one reader and one writer each."""
