"""Two remedies as arguments of `generate`: truncations that keep eos, and a termination floor.

    model.generate(**inputs, do_sample=True, top_p=0.9, custom_generate=eosin.hub.consistent)
    model.generate(**inputs, logits_processor=[eosin.hub.TerminationFloor(eos_ids, budget=500)])

The first wraps the warpers of `generate` and calls its own loop. The second is a logits processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import logits_process as warpers
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from eosin.errors import BadInput
from eosin.guarantees.certificate import PromisesOnly, find_floor
from eosin.logits import rewrite_eos

TRUNCATING_PROCESSORS = (
    warpers.TopKLogitsWarper,
    warpers.TopPLogitsWarper,
    warpers.MinPLogitsWarper,
    warpers.TypicalLogitsWarper,
    warpers.EpsilonLogitsWarper,
    warpers.EtaLogitsWarper,
    warpers.TopHLogitsWarper,
)


class EosKeepingProcessor(LogitsProcessor):
    """A truncation, or several in a row, after which eos has its score again."""

    def __init__(self, inner: Any, eos_ids: Tensor):
        self.inner = inner
        self.eos_ids = eos_ids

    def __call__(
        self, input_ids: Int[Tensor, "batch time"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        eos_ids = self.eos_ids.to(scores.device)
        before = scores.index_select(1, eos_ids)
        # a warper does not change its input, so its output may be written to
        return self.inner(input_ids, scores).index_copy_(1, eos_ids, before)


def consistent(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    generation_config: Any,
    stream_to: Any = None,
    **others: Any,
) -> Any:
    """For `generate(custom_generate=...)`: every truncation that is set keeps eos (Theorem 4.1).

    `generate` does not pass its `streamer` to a custom function. Name it `stream_to` instead:

        model.generate(**inputs, do_sample=True, custom_generate=eosin.hub.consistent, stream_to=streamer)
    """
    eos_ids = generation_config.eos_token_id
    if eos_ids is None:
        raise BadInput("generate has no eos_token_id to keep; set it in the generation config")
    ids = torch.as_tensor(eos_ids, device=input_ids.device).reshape(-1)
    kept = LogitsProcessorList()
    # several truncations are one: a later one must not see the eos that an earlier one dropped
    for truncates, group in groupby(logits_processor, lambda each: isinstance(each, TRUNCATING_PROCESSORS)):
        processors = LogitsProcessorList(group)
        kept.extend([EosKeepingProcessor(processors, ids)] if truncates else processors)
    beams = (generation_config.num_beams or 1) > 1
    loop = type(model)._beam_search if beams else type(model)._sample
    if stream_to is not None and beams:
        raise BadInput("stream_to cannot be used with beams: set num_beams to 1")
    if stream_to is not None:
        stream_to.put(input_ids.cpu())  # a streamer gets the prompt first
        others["streamer"] = stream_to
    return loop(model, input_ids, logits_processor=kept, generation_config=generation_config, **others)


class TerminationFloor(LogitsProcessor):
    """A floor under the probability of eos: after `grace` tokens, survival is multiplied by (1 - epsilon)^(t - grace).

    eos_ids         the tokens that end a text
    epsilon, grace  of the floor; or instead of both:
    budget          a length that greedy decoding never reaches, and sampling in one case of a million
    prompt_length   tokens of the prompt; by default, the length of the first input

    Returns normalised log-probabilities, which beam search can add.
    """

    def __init__(
        self,
        eos_ids: int | Sequence[int],
        *,
        epsilon: float | None = None,
        grace: int = 0,
        budget: int | None = None,
        prompt_length: int | None = None,
    ):
        self.eos_ids = torch.as_tensor(eos_ids).reshape(-1)
        if not len(self.eos_ids):
            raise BadInput("eos_ids must name at least one token")
        if (epsilon is None) == (budget is None):
            raise BadInput("give either epsilon (and grace if you like) or a budget of tokens")
        if budget is not None:
            unknown = PromisesOnly(int(self.eos_ids.max()) + 2, tuple(self.eos_ids.tolist()))
            floor = find_floor(unknown, "ancestral", budget)
            epsilon, grace = floor.epsilon, floor.grace
        self.epsilon = float(epsilon or 0)
        self.grace = grace
        if not 0 < self.epsilon < 1 or grace < 0:
            raise BadInput(f"epsilon must lie strictly between 0 and 1 and grace be at least 0, got {epsilon}, {grace}")
        self.prompt_length = prompt_length
        self._prompt, self._last = torch.empty(0, 0, dtype=torch.long), 0

    def __call__(
        self, input_ids: Int[Tensor, "batch time"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        log_probs = scores.float().log_softmax(-1)
        later = self._step(input_ids) - self.grace
        if later <= 0:
            return log_probs
        eos_ids = self.eos_ids.to(scores.device)
        others = log_probs.index_fill(1, eos_ids, -math.inf).logsumexp(1)
        log_factor = later * math.log1p(-self.epsilon)
        raised = rewrite_eos(log_probs.index_select(1, eos_ids), others, lambda survival: survival + log_factor)
        return log_probs.index_copy(1, eos_ids, raised).log_softmax(-1)

    def _step(self, input_ids: Int[Tensor, "batch time"]) -> int:
        """The step of the next token, counted from 1.

        An input continues a prompt if it begins with it and is at most one token longer than the last input. It may
        be shorter, if speculated tokens were rejected.
        """
        length = input_ids.shape[1]
        if self.prompt_length is not None:
            return length - self.prompt_length + 1
        if not self._continues_prompt(input_ids):
            self._prompt = input_ids.clone()
        self._last = length
        return length - self._prompt.shape[1] + 1

    def _continues_prompt(self, input_ids: Int[Tensor, "batch time"]) -> bool:
        rows, start = self._prompt.shape
        fits = start < input_ids.shape[1] <= self._last + 1 and len(input_ids) == rows
        return fits and torch.equal(input_ids[:, :start], self._prompt.to(input_ids.device))
