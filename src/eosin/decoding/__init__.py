"""Decoders: what to do with next-token logits. Nothing in here knows what kind of model made them."""
