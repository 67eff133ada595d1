"""`sweeplab laws`: scaling laws of a table or of studies, with a verdict on each number."""
