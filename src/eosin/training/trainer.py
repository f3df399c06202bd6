"""Training of one model: a step, and the state that the next step needs.

Settings, corpus and n decide step n: the seeds of batches and dropout are derived from the seed of the run and the
number of the epoch or step. So the state is weights, Adam's moments and a few numbers, and a run that was killed ends
with the same bits as one that was not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from eosin.contracts import Rows
from eosin.data.batches import Batch, BatchPlan, gather, plan_shuffled
from eosin.data.corpus import Corpus
from eosin.devices import PRECISIONS
from eosin.errors import BadInput
from eosin.events import Watch, ignore
from eosin.models.checkpoint import set_parameters
from eosin.training.evaluation import Likelihood, evaluate, negative_log_likelihood

if TYPE_CHECKING:
    from eosin.training.run import RunSettings

ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """How far training is. It is saved with the weights."""

    rate: float
    epoch: int = 0
    """Finished epochs, validation included."""
    batch: int = 0
    """Finished batches of the current epoch."""
    step: int = 0
    best_loss: float | None = None
    """Of validation."""
    best_epoch: int = 0
    stalled: int = 0
    """Epochs since the best one."""
    of_epoch: Likelihood = field(default_factory=Likelihood)
    since_event: Likelihood = field(default_factory=Likelihood)
    seconds: float = 0.0

    @classmethod
    def from_notes(cls, notes: dict[str, Any]) -> Progress:
        parts = {key: Likelihood(**notes[key]) for key in ("of_epoch", "since_event")}
        return cls(**{**notes, **parts})


class Trainer:
    """A model, its optimiser and how far they are."""

    span = "epoch"
    """The name of what lies between two validations."""
    save_seconds = 60.0
    """Seconds between two saves, unless the caller says otherwise: the work that a kill may cost."""

    def __init__(self, config: RunSettings, corpus: Corpus, device: torch.device, precision: str = "float32"):
        self.config = config
        self.settings = config.training
        self.corpus = corpus
        self.device = device
        self.architecture = config.resolve_architecture(corpus.tokenizer.vocab_size)
        self.model = self.architecture.build(derive_seed(self.settings.seed, "weights", 0)).to(device).train()
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.Adam(self.trained.values(), lr=self.settings.learning_rate, fused=True)
        self.dtype = PRECISIONS[precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.progress = Progress(rate=self.settings.learning_rate)

    @property
    def is_over(self) -> bool:
        return self.progress.epoch >= self.settings.epochs or self.progress.stalled >= self.settings.patience

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        warmup = min(1.0, (self.progress.step + 1) / max(1, self.settings.warmup))
        steps = math.ceil(len(self.corpus.train) / self.settings.batch) * self.settings.epochs
        decay = 1 - self.progress.step / steps if self.settings.falling else 1
        return self.progress.rate * decay * warmup

    def plan_epoch(self) -> BatchPlan:
        """The sentences of each batch of the current epoch."""
        seed = derive_seed(self.settings.seed, "order", self.progress.epoch)
        return plan_shuffled(self.corpus.train.lengths, self.settings.batch, seed)

    def gather_batch(self, rows: Rows) -> Batch:
        return gather(self.corpus.train, rows)

    def get_divisor(self, batch: Batch) -> int:
        """What the summed log-likelihood of a batch is divided by; here the loss is a mean over tokens."""
        return batch.tokens

    def stall(self) -> None:
        """Note an epoch without a better validation perplexity."""
        self.progress.stalled += 1
        self.progress.rate *= self.settings.anneal

    def measure(self, split: str, watch: Watch = ignore) -> Likelihood:
        """The likelihood of a split, without dropout."""
        label = f"perplexity of {split}"
        return evaluate(self.model, self.corpus.splits[split], self.device, watch, self.config.measured_lines, label)

    def export(self, folder: Path) -> None:
        """Write what a finished run has beside its weights: nothing here."""

    def learn(self, batch: Batch) -> tuple[Likelihood, float]:
        """Take one step of gradient descent. Returns the likelihood before it and the norm of the gradient."""
        dropout_seed = derive_seed(self.settings.seed, "dropout", self.progress.step)
        mixed = torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32)
        with use_seed(dropout_seed, self.device), mixed:
            total = negative_log_likelihood(self.model, batch.to(self.device))
        self.optimizer.zero_grad()
        self.scaler.scale(total / self.get_divisor(batch)).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        likelihood = Likelihood(float(total.detach()), batch.tokens)
        self._check(likelihood.loss, norm)
        self.optimizer.param_groups[0]["lr"] = self.rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._count(likelihood)
        return likelihood, norm

    def _clip(self) -> float:
        norm = get_total_norm([p.grad for p in self.trained.values() if p.grad is not None])
        if norm > self.settings.clip:
            clip_grads_with_norm_(self.trained.values(), self.settings.clip, norm)
        return float(norm)

    def _check(self, loss: float, norm: float) -> None:
        """Raise before a gradient that is not finite spoils the weights; a scaler skips such steps itself."""
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise BadInput(
                f"the loss is {loss} and the norm of its gradient {norm} at step {self.progress.step + 1}: "
                "choose a smaller learning_rate"
            )

    def _count(self, likelihood: Likelihood) -> None:
        progress = self.progress
        progress.step += 1
        progress.batch += 1
        progress.of_epoch += likelihood
        progress.since_event += likelihood

    def get_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in self.trained.items()}
        for name, parameter in self.trained.items():
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"adam.{key}.{name}": value for key, value in moments.items()}
        return tensors, {"progress": asdict(self.progress), "scaler": self.scaler.state_dict()}

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        self.progress = Progress.from_notes(notes["progress"])
        if notes["scaler"]:
            self.scaler.load_state_dict(notes["scaler"])
        set_parameters(self.trained, {name: tensors[f"model.{name}"] for name in self.trained})
        for name, parameter in self.trained.items():
            keys = [key for key in ADAM_STATE if f"adam.{key}.{name}" in tensors]
            if keys:
                self.optimizer.state[parameter] = {key: tensors[f"adam.{key}.{name}"].to(self.device) for key in keys}


def derive_seed(seed: int, purpose: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def use_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Let torch draw from this seed, and restore its generator afterwards."""
    accelerators = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(accelerators, device_type=device.type if accelerators else "cuda"):
        torch.manual_seed(seed)
        yield
