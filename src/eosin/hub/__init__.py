"""Hugging Face: any causal language model audited, explained and fixed. transformers is imported here only.

Importing this package tells transformers of models with self-terminating heads, so that `from_pretrained` opens them.
"""

from eosin.hub.callback import TerminationCallback
from eosin.hub.causal_lm import CausalLM
from eosin.hub.generation import TerminationFloor, consistent
from eosin.hub.heads import add_head

__all__ = ["CausalLM", "TerminationCallback", "TerminationFloor", "add_head", "consistent"]
