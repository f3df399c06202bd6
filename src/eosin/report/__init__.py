"""Reports: tables and comparisons from records that are there already. Nothing is decoded, and nothing needs torch."""
