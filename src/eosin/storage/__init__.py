"""Files on disk: atomic writes, JSON lines, locks and tensors."""
