"""From text to batches: sources, tokenizers, prepared corpora, prompts."""
