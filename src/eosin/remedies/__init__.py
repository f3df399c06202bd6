"""Remedies without training: tried on the user's prompts, compared with the model as it is, and recommended."""
