"""Training a run: epochs of shuffled batches, validation after each, the best weights kept, safe to kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from tqdm import tqdm

from eosin.data.batches import Batch
from eosin.data.corpus import Corpus
from eosin.devices import choose_device, choose_precision, use_threads
from eosin.errors import BadInput
from eosin.models.checkpoint import build_trained, save_weights
from eosin.settings import Table
from eosin.training.evaluation import Likelihood
from eosin.training.events import Event, Listener, Log, tensorboard_if_installed
from eosin.training.memory import keeping_memory
from eosin.training.run import Run, open_run
from eosin.training.trainer import Trainer

BAR = "{desc} {percentage:3.0f}% {bar:8} {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}"


@runtime_checkable
class Trainable(Protocol):
    """The settings of a run."""

    def check(self, corpus: Corpus) -> None:
        """Raises where the corpus will not do."""

    def resolved(self, corpus: Corpus) -> dict[str, Table]:
        """All sections with every default written out."""

    def trainer(self, corpus: Corpus, device: torch.device, precision: str) -> Trainer:
        """What learns."""


class Stopped(Exception):  # noqa: N818 (not an error)
    """Training was asked to stop and has saved its state."""


@dataclass
class Session:
    """One process at work on a run: the trainer, who listens, and when to save or stop."""

    run: Run
    trainer: Trainer
    log: Log
    listeners: Sequence[Listener]
    precision: str
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
        trainer = self.trainer
        trainer.progress.seconds += self._lap()
        tensors, notes = trainer.state()
        self.run.save(tensors, {**notes, **self._conditions, "log_size": self.log.size})
        self.last_save = time.monotonic()

    @property
    def _conditions(self) -> dict[str, Any]:
        """What decides the last bits."""
        threads = torch.get_num_threads()
        return {"device": self.trainer.device.type, "precision": self.precision, "threads": threads}

    def _lap(self) -> float:
        before, self.clock = self.clock, time.monotonic()
        return self.clock - before

    def epoch(self) -> None:
        """What is left of the present epoch."""
        trainer, progress = self.trainer, self.trainer.progress
        plan = trainer.plan()
        described = f"{trainer.span} {progress.epoch + 1}"
        with tqdm(
            total=len(plan), initial=progress.batch, desc=described, bar_format=BAR, disable=self._hidden, leave=False
        ) as bar:
            started, tokens = time.monotonic(), 0
            for rows in plan[progress.batch :]:
                likelihood, norm = trainer.learn(trainer.batch(rows))
                tokens += likelihood.tokens
                bar.set_postfix_str(_live(progress.of_epoch, tokens / (time.monotonic() - started)), refresh=False)
                bar.update()
                self._after_step(norm)

    def _after_step(self, norm: float) -> None:
        progress = self.trainer.progress
        if progress.step % self.trainer.settings.log_every == 0:
            recent, progress.since_event = progress.since_event, Likelihood()
            self.tell("step", epoch=progress.epoch + 1, loss=recent.loss, gradient_norm=norm, rate=self.trainer.rate)
        stop = self.stopping()
        if stop or time.monotonic() - self.last_save >= self.save_seconds:
            self.save()
        if stop:
            raise Stopped

    def validate(self) -> None:
        """The end of an epoch: keep the weights if they are the best, or else lower the rate."""
        trainer, progress = self.trainer, self.trainer.progress
        valid, trained, rate = self.measure("valid"), progress.of_epoch, trainer.rate
        if not math.isfinite(valid.perplexity):
            raise BadInput(f"the validation loss of epoch {progress.epoch + 1} is {valid.loss}: lower learning_rate")
        progress.epoch, progress.batch, progress.of_epoch = progress.epoch + 1, 0, Likelihood()
        if progress.best_loss is None or valid.loss < progress.best_loss:
            progress.best_loss, progress.best_epoch, progress.stalled = valid.loss, progress.epoch, 0
            self.keep_weights(valid_loss=valid.loss)
        else:
            trainer.stall()
        self.tell(
            "epoch",
            **({} if trainer.span == "epoch" else {"span": trainer.span}),
            epoch=progress.epoch,
            train_loss=trained.loss,
            valid_loss=valid.loss,
            valid_perplexity=valid.perplexity,
            best_epoch=progress.best_epoch,
            rate=rate,
        )
        self.save()

    def keep_weights(self, **notes: Any) -> None:
        trainer = self.trainer
        known = {"epoch": trainer.progress.epoch, "identity": self.run.identity}
        save_weights(self.run.folder, trainer.model, trainer.architecture, {**known, **notes})

    def measure(self, split: str) -> Likelihood:
        return self.trainer.likelihood(split, lambda batches: self._watched(batches, split))

    def _watched(self, batches: Iterable[Batch], split: str) -> Iterator[Batch]:
        for batch in tqdm(batches, f"perplexity of {split}", unit="batch", disable=self._hidden, leave=False, delay=2):
            if self.stopping():
                raise Stopped
            yield batch

    def conclude(self) -> dict[str, Any]:
        """The perplexities of the best weights; what resuming needed is let go."""
        trainer, progress = self.trainer, self.trainer.progress
        if not progress.epoch:  # a pretrained model as it is
            self.save()
            self.keep_weights()
        trainer.model = build_trained(self.run.folder, trainer.architecture).to(trainer.device)
        trainer.conclude(self.run.folder)
        result = {f"{split}_perplexity": self.measure(split).perplexity for split in trainer.measured}
        self.tell("end", epochs=progress.epoch, best_epoch=progress.best_epoch, **result)
        notes = {"result": result, "progress": asdict(progress), **self._conditions}
        self.run.save({}, {**notes, "log_size": self.log.size})
        return result

    def to_the_end(self) -> dict[str, Any]:
        if not self.trainer.progress.step:
            self.tell("begin", **self._conditions)
        while not self.trainer.over:
            self.epoch()
            self.save()
            self.validate()
        return self.conclude()

    @property
    def _hidden(self) -> bool | None:
        return None if self.show else True  # None: tqdm looks whether there is a terminal


def train(
    config: Trainable,
    corpus: Corpus,
    folder: Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    save_seconds: float | None = None,
    listeners: Sequence[Listener] = (),
    stopping: Callable[[], bool] = lambda: False,
    show: bool = False,
) -> dict[str, Any]:
    """Train in a run directory from where it is to the end: the perplexities of the best weights.

    The settings say what is trained: a `Config` a model of Eosin's own, `Tuning` a pretrained one.
    """
    config.check(corpus)
    choose_precision(precision, choose_device(device))  # before anything is made
    with open_run(folder, config.resolved(corpus), corpus) as run:
        saved = run.saved()
        if saved and "result" in saved.notes:
            return saved.notes["result"]
        before = saved.notes if saved else {}
        where = choose_device(before.get("device", "auto") if device == "auto" else device)
        precision = choose_precision(precision, where, before.get("precision"))
        # the last bits of a sum depend on how many threads share it
        with keeping_memory(), use_threads(threads or before.get("threads")):
            trainer = config.trainer(corpus, where, precision)
            if saved:
                trainer.restore(saved.tensors, saved.notes)
            log = Log(folder, before.get("log_size", 0))
            with tensorboard_if_installed(folder, log) as curves:
                told = [log, *curves, *listeners]
                patience = trainer.save_seconds if save_seconds is None else save_seconds
                session = Session(run, trainer, log, told, precision, patience, stopping, show)
                return session.to_the_end()


def _live(likelihood: Likelihood, speed: float) -> str:
    return f"loss {likelihood.loss:.2f}, ppl {likelihood.perplexity:.1f}, {speed:,.0f} tok/s"
