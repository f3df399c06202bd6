"""Audits: how often decoding does not end, why, and how sure that is."""
