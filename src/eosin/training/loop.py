"""Training: epochs of shuffled batches, validation after each, the best weights kept; it can be killed at any moment.

What step n does is decided by the settings, the corpus and n: batches and dropout come from seeds derived of the seed
and the number of the epoch or step. So a state is weights, Adam's moments and a few numbers, and a run that was killed
ends with the same bits as one that was not.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from tqdm import tqdm

from eosin.errors import BadInput
from eosin.models.checkpoint import copy_into, restored, save_weights
from eosin.text.batching import Batch, Plan, gather, shuffled
from eosin.text.corpus import Corpus
from eosin.text.sources import SPLITS
from eosin.training.config import Config
from eosin.training.events import Event, Listener, Log, tensorboard_if_installed
from eosin.training.loss import Likelihood, evaluate, negative_log_likelihood
from eosin.training.run import Run, open_run

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOMENTS = ("exp_avg", "exp_avg_sq")


class Stopped(Exception):  # noqa: N818 (not an error)
    """Training was asked to stop and has saved its state."""


@dataclass
class Progress:
    """How far training is. All of it goes into the saved state."""

    rate: float
    epoch: int = 0
    """Epochs that are over, validation included."""
    batch: int = 0
    """Batches of the present epoch that are over."""
    step: int = 0
    best_loss: float = math.inf
    """Of validation."""
    best_epoch: int = 0
    stalled: int = 0
    """Epochs since then."""
    of_epoch: Likelihood = field(default_factory=Likelihood)
    since_event: Likelihood = field(default_factory=Likelihood)
    seconds: float = 0.0

    @classmethod
    def from_notes(cls, notes: dict[str, Any]) -> Progress:
        parts = {key: Likelihood(**notes[key]) for key in ("of_epoch", "since_event")}
        return cls(**{**notes, **parts})


class Trainer:
    """A model, its optimiser and how far they are."""

    def __init__(self, config: Config, corpus: Corpus, device: torch.device, precision: str):
        self.settings = config.training
        self.corpus = corpus
        self.device = device
        self.architecture = config.architecture(corpus.tokenizer.vocab_size)
        self.model = self.architecture.build(derived_seed(self.settings.seed, "weights", 0)).to(device).train()
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.Adam(self.trained.values(), lr=self.settings.learning_rate, fused=True)
        self.dtype = chosen_dtype(precision, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.progress = Progress(rate=self.settings.learning_rate)

    def plan(self) -> Plan:
        """Which sentences make each batch of the present epoch."""
        seed = derived_seed(self.settings.seed, "order", self.progress.epoch)
        return shuffled(self.corpus.train.lengths, self.settings.batch, seed)

    def learn(self, batch: Batch) -> tuple[Likelihood, float]:
        """One step of gradient descent: the likelihood before it, and the norm of the gradient."""
        progress = self.progress
        with self._randomness(), torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            total = negative_log_likelihood(self.model, batch.to(self.device))
        self.optimizer.zero_grad()
        self.scaler.scale(total / batch.tokens).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        self.optimizer.param_groups[0]["lr"] = progress.rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        likelihood = Likelihood(float(total.detach()), batch.tokens)
        if not math.isfinite(likelihood.loss):
            raise BadInput(f"the loss is {likelihood.loss} at step {progress.step + 1}: choose a smaller learning_rate")
        progress.step += 1
        progress.batch += 1
        progress.of_epoch += likelihood
        progress.since_event += likelihood
        return likelihood, norm

    def _clip(self) -> float:
        norm = get_total_norm([p.grad for p in self.trained.values() if p.grad is not None])
        if norm > self.settings.clip:
            clip_grads_with_norm_(self.trained.values(), self.settings.clip, norm)
        return float(norm)

    def _randomness(self) -> AbstractContextManager[None]:
        return seeded(derived_seed(self.settings.seed, "dropout", self.progress.step), self.device)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {f"model.{name}": parameter for name, parameter in self.trained.items()}
        for moment in MOMENTS if self.progress.step else ():
            for name, parameter in self.trained.items():
                tensors[f"{moment}.{name}"] = self.optimizer.state[parameter][moment]
        return tensors, {"progress": asdict(self.progress), "scaler": self.scaler.state_dict()}

    def restore(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        self.progress = Progress.from_notes(notes["progress"])
        if notes["scaler"]:
            self.scaler.load_state_dict(notes["scaler"])
        copy_into(self.trained, {name: tensors[f"model.{name}"] for name in self.trained})
        for name, parameter in self.trained.items() if self.progress.step else ():
            moments = {moment: tensors[f"{moment}.{name}"].to(self.device) for moment in MOMENTS}
            steps = torch.tensor(float(self.progress.step), device=self.device)
            self.optimizer.state[parameter] = {"step": steps, **moments}


@dataclass
class Session:
    """One process at work on a run: the trainer, who listens, and when to save or stop."""

    run: Run
    trainer: Trainer
    log: Log
    listeners: Sequence[Listener]
    save_seconds: float
    stopping: Callable[[], bool]
    show: bool
    clock: float = field(default_factory=time.monotonic)
    last_save: float = field(default_factory=time.monotonic)

    def tell(self, event: str, **details: Any) -> None:
        progress = self.trainer.progress
        progress.seconds += self._lap()
        whole: Event = {"event": event, "step": progress.step, **details, "seconds": round(progress.seconds, 3)}
        for listener in self.listeners:
            listener.hear(whole)

    def save(self) -> None:
        self.trainer.progress.seconds += self._lap()
        tensors, notes = self.trainer.state()
        self.run.save(tensors, {**notes, "log_size": self.log.size, "threads": torch.get_num_threads()})
        self.last_save = time.monotonic()

    def _lap(self) -> float:
        before, self.clock = self.clock, time.monotonic()
        return self.clock - before

    def epoch(self) -> None:
        """What is left of the present epoch."""
        trainer, progress = self.trainer, self.trainer.progress
        plan = trainer.plan()
        described = f"epoch {progress.epoch + 1}"
        with tqdm(
            total=len(plan), initial=progress.batch, desc=described, unit="batch", disable=self._hidden, leave=False
        ) as bar:
            started, tokens = time.monotonic(), 0
            for rows in plan[progress.batch :]:
                likelihood, norm = trainer.learn(gather(trainer.corpus.train, rows))
                tokens += likelihood.tokens
                bar.set_postfix_str(_live(progress.of_epoch, tokens / (time.monotonic() - started)), refresh=False)
                bar.update()
                self._after_step(norm)

    def _after_step(self, norm: float) -> None:
        progress = self.trainer.progress
        if progress.step % self.trainer.settings.log_every == 0:
            recent, progress.since_event = progress.since_event, Likelihood()
            self.tell("step", epoch=progress.epoch + 1, loss=recent.loss, gradient_norm=norm, rate=progress.rate)
        stop = self.stopping()
        if stop or time.monotonic() - self.last_save >= self.save_seconds:
            self.save()
        if stop:
            raise Stopped

    def validate(self) -> None:
        """The end of an epoch: keep the weights if they are the best, or else lower the rate."""
        trainer, progress = self.trainer, self.trainer.progress
        valid, trained = self.measure("valid"), progress.of_epoch
        progress.epoch, progress.batch, progress.of_epoch = progress.epoch + 1, 0, Likelihood()
        if valid.loss < progress.best_loss:
            progress.best_loss, progress.best_epoch, progress.stalled = valid.loss, progress.epoch, 0
            best = {"epoch": progress.epoch, "valid_loss": valid.loss}
            save_weights(self.run.folder, trainer.model, trainer.architecture, best)
        else:
            progress.stalled += 1
            progress.rate *= trainer.settings.anneal
        self.tell(
            "epoch",
            epoch=progress.epoch,
            train_loss=trained.loss,
            valid_loss=valid.loss,
            valid_perplexity=valid.perplexity,
            best_epoch=progress.best_epoch,
            rate=progress.rate,
        )
        self.save()

    def measure(self, split: str) -> Likelihood:
        def watched(batches: Any) -> Any:
            bar = tqdm(batches, desc=f"perplexity of {split}", unit="batch", disable=self._hidden, leave=False, delay=2)
            for batch in bar:
                if self.stopping():
                    raise Stopped
                yield batch

        return evaluate(self.trainer.model, self.trainer.corpus.splits[split], self.trainer.device, watched)

    def conclude(self) -> dict[str, Any]:
        """The perplexities of the best weights; what resuming needed is let go."""
        trainer, progress = self.trainer, self.trainer.progress
        trainer.model = restored(self.run.folder, trainer.architecture).to(trainer.device)
        result = {f"{split}_perplexity": self.measure(split).perplexity for split in SPLITS}
        self.tell("end", epochs=progress.epoch, best_epoch=progress.best_epoch, **result)
        self.run.save({}, {"log_size": self.log.size, "result": result, "progress": asdict(progress)})
        return result

    @property
    def _hidden(self) -> bool | None:
        return None if self.show else True  # None: tqdm looks whether there is a terminal

    @property
    def over(self) -> bool:
        progress, settings = self.trainer.progress, self.trainer.settings
        return progress.epoch >= settings.epochs or progress.stalled >= settings.patience


def train(
    config: Config,
    corpus: Corpus,
    folder: Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    save_seconds: float = 60.0,
    listeners: Sequence[Listener] = (),
    stopping: Callable[[], bool] = lambda: False,
    show: bool = False,
) -> dict[str, Any]:
    """Train in a run directory from where it is to the end: the perplexities of the best weights."""
    if len(corpus.train) < config.training.batch:
        raise BadInput(
            f"there are {len(corpus.train)} sentences to train on, fewer than a batch of {config.training.batch}; "
            "give more text or set training.batch"
        )
    where = chosen_device(device)
    with open_run(folder, config.resolved(corpus), corpus) as run:
        saved = run.saved()
        if saved and "result" in saved[1]:
            return saved[1]["result"]
        # the last bits of a sum depend on how many threads share it
        torch.set_num_threads(threads or (saved[1]["threads"] if saved else torch.get_num_threads()))
        trainer = Trainer(config, corpus, where, precision)
        if saved:
            trainer.restore(*saved)
        log = Log(folder, saved[1]["log_size"] if saved else 0)
        told = [log, *tensorboard_if_installed(folder, trainer.progress.step), *listeners]
        session = Session(run, trainer, log, told, save_seconds, stopping, show)
        while not session.over:
            session.epoch()
            session.save()
            session.validate()
        return session.conclude()


def chosen_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"device {name!r} cannot be used ({reason}); cpu always can, cuda where torch has it") from error
    return torch.device(name)


def chosen_dtype(precision: str, device: torch.device) -> torch.dtype:
    if precision in PRECISIONS:
        return PRECISIONS[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def derived_seed(seed: int, purpose: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed} {purpose} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torch draws from this seed inside, and goes on as if nothing had been outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _live(likelihood: Likelihood, speed: float) -> str:
    return f"loss {likelihood.loss:.3f}, perplexity {likelihood.perplexity:.1f}, {speed:,.0f} tokens/s"
