"""From text to batches: sources, tokenization, prepared corpora."""
