"""Turn corpora into tokens and tokens into batches; numpy only."""
