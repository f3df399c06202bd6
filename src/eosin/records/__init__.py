"""Records (counts with a signature) and the statistics of termination. Nothing here imports torch."""
