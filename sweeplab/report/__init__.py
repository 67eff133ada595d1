"""Reports on a study: figure data first, then drawing, then one page that needs no network."""
