"""What lies on disk of a study: folders, and records with one reader and one writer."""
