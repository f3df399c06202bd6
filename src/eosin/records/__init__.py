"""Counts with a signature, and the statistics of termination. Nothing here needs torch."""
