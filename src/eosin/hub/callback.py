"""Audits during training: a callback for the Trainer of transformers, and for the trainers of TRL, which extend it.

trainer.add_callback(eosin.hub.TerminationCallback(trainer, prompts, every=500, max_steps=500))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import TrainerCallback

from eosin.auditing.tally import Tally
from eosin.contracts import Decoder
from eosin.data.prompts import Prompt
from eosin.decoding.decode import complete
from eosin.decoding.job import Job
from eosin.decoding.spec import parse_decoder
from eosin.errors import BadInput
from eosin.hub.causal_lm import CausalLM
from eosin.hub.endings import find_endings, join_endings
from eosin.hub.loading import HubTokenizer


class TerminationCallback(TrainerCallback):
    """Every `every` steps and at the end, r_L with its 95% interval, and the causes, go into the trainer's log.

    prompts    texts, or lists of messages for the chat template; with `chat`, texts go into the template too
    decoders   specifications, as in "greedy" or "nucleus:0.9"
    max_steps  tokens after which a completion has not ended
    eos_ids    the tokens that end a text; by default, all that tokenizer and configurations name

    Each process of a distributed training decodes all prompts, so its copy of the model must be whole.
    """

    def __init__(
        self,
        trainer: Any,
        prompts: Sequence[Prompt],
        *,
        every: int,
        max_steps: int,
        decoders: Sequence[str] = ("greedy",),
        seed: int = 0,
        chat: bool = False,
        eos_ids: Sequence[int] = (),
    ):
        if every < 1 or not prompts:
            raise BadInput(f"give a prompt or more, and a number of steps from 1 on, got {len(prompts)} and {every}")
        self.trainer = trainer
        self.every = every
        self.max_steps = max_steps
        self.seed = seed
        self.decoders = list(map(parse_decoder, decoders))
        tokenizer = trainer.processing_class
        self.prefixes = HubTokenizer(tokenizer).encode_prompts(prompts, chat)
        model = trainer.model
        named = join_endings(find_endings(tokenizer, model.config, getattr(model, "generation_config", None)))
        self.eos_ids = tuple(eos_ids) or named
        self.audited = 0
        job = self.create_job()
        for decoder in self.decoders:  # refuse before training
            job.check_decoder(decoder)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step % self.every == 0:
            self.log(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step != self.audited:
            self.log(state.global_step)

    def log(self, step: int) -> None:
        self.audited = step
        self.trainer.log(self.measure())

    def measure(self) -> dict[str, float]:
        """The numbers of an audit, by the names that they have in the log."""
        job = self.create_job()
        return {name: value for decoder in self.decoders for name, value in count_endings(job, decoder)}

    def create_job(self) -> Job:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        # an adapter of PEFT acts inside the model that it wraps
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        return Job.create(CausalLM(inner, self.eos_ids), self.prefixes, max_steps=self.max_steps, seed=self.seed)


def count_endings(job: Job, decoder: Decoder) -> Iterator[tuple[str, float]]:
    """The ratio, its interval and the share of each cause."""
    tally = Tally(0, len(job.contexts), job.max_steps)
    for completion in complete(job, decoder):
        tally.add(completion)
    counts = tally.to_counts()
    ratio = counts.ratio(job.max_steps)
    low, high = ratio.interval()
    numbers = {"r_L": ratio.value, "r_L 95% low": low, "r_L 95% high": high}
    causes = {str(cause): count / counts.contexts for cause, count in counts.causes.items()}
    for name, value in {**numbers, **causes}.items():
        yield f"eosin/{decoder}/{name}", value
