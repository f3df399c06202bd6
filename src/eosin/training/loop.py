"""Training a run: epochs of shuffled batches, validation after each, the best weights kept, safe to kill."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from eosin.data.corpus import Corpus
from eosin.devices import choose_device, choose_precision, use_threads
from eosin.errors import BadInput
from eosin.events import Event, Stopped, Watch, ignore
from eosin.models.checkpoint import build_trained, save_weights
from eosin.training.evaluation import Likelihood
from eosin.training.log import Log, open_tensorboard
from eosin.training.memory import keep_memory
from eosin.training.run import RunSettings, RunWriter, lock_run
from eosin.training.trainer import Trainer


@dataclass
class Session:
    """One process that trains a run."""

    writer: RunWriter
    trainer: Trainer
    log: Log
    curves: Sequence[Watch]
    watch: Watch
    precision: str
    save_seconds: float
    clock: float = field(default_factory=time.monotonic)
    last_save: float = field(default_factory=time.monotonic)

    def train(self) -> dict[str, Any]:
        """Train to the end. Returns the perplexities of the best weights."""
        try:
            if not self.log.size:
                self.watch(self.write_event("begin", **self.conditions))
            while not self.trainer.is_over:
                self.train_epoch()
                self.save()
                self.validate()
        except Stopped:
            self.save()
            raise
        return self.finish()

    def write_event(self, kind: str, **facts: Any) -> Event:
        """Write an event to the log."""
        progress = self.trainer.progress
        self._count_seconds()
        event = Event(kind, {"step": progress.step, **facts, "seconds": round(progress.seconds, 3)})
        for write in (self.log.write, *self.curves):
            write(event)
        return event

    def save(self) -> None:
        self._count_seconds()
        tensors, notes = self.trainer.get_state()
        self.writer.save_state(tensors, {**notes, **self.conditions, "log_size": self.log.size})
        self.last_save = time.monotonic()

    @property
    def conditions(self) -> dict[str, Any]:
        """What decides the last bits of the results, beside the settings."""
        threads = torch.get_num_threads()
        return {"device": self.trainer.device.type, "precision": self.precision, "threads": threads}

    def _count_seconds(self) -> None:
        before, self.clock = self.clock, time.monotonic()
        self.trainer.progress.seconds += self.clock - before

    def train_epoch(self) -> None:
        """Train on the remaining batches of the current epoch."""
        trainer, progress = self.trainer, self.trainer.progress
        plan = trainer.plan_epoch()
        started, tokens = time.monotonic(), 0
        for rows in plan[progress.batch :]:
            likelihood, norm = trainer.learn(trainer.gather_batch(rows))
            tokens += likelihood.tokens
            if progress.step % trainer.settings.log_every == 0:
                self.write_step(norm)
            so_far, speed = progress.of_epoch, tokens / (time.monotonic() - started)
            note = f"loss {so_far.loss:.2f}, ppl {so_far.perplexity:.1f}, {speed:,.0f} tok/s"
            label = f"{trainer.span} {progress.epoch + 1}"
            self.watch(Event("progress", {"label": label, "done": progress.batch, "total": len(plan), "note": note}))
            if time.monotonic() - self.last_save >= self.save_seconds:
                self.save()

    def write_step(self, norm: float) -> None:
        progress = self.trainer.progress
        recent, progress.since_event = progress.since_event, Likelihood()
        facts = {"loss": recent.loss, "gradient_norm": norm, "rate": self.trainer.rate}
        self.watch(self.write_event("step", epoch=progress.epoch + 1, **facts))

    def validate(self) -> None:
        """End an epoch: keep the weights if they are the best, or else lower the rate."""
        trainer, progress = self.trainer, self.trainer.progress
        valid, trained, rate = trainer.measure("valid", self.watch), progress.of_epoch, trainer.rate
        if not math.isfinite(valid.perplexity):
            raise BadInput(f"the validation loss of epoch {progress.epoch + 1} is {valid.loss}: lower learning_rate")
        progress.epoch, progress.batch, progress.of_epoch = progress.epoch + 1, 0, Likelihood()
        if progress.best_loss is None or valid.loss < progress.best_loss:
            progress.best_loss, progress.best_epoch, progress.stalled = valid.loss, progress.epoch, 0
            self.keep_weights(valid_loss=valid.loss)
        else:
            trainer.stall()
        event = self.write_event(
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
        self.watch(event)

    def keep_weights(self, **notes: Any) -> None:
        trainer = self.trainer
        known = {"epoch": trainer.progress.epoch, "identity": self.writer.identity}
        save_weights(self.writer.folder, trainer.model, trainer.architecture, {**known, **notes})

    def finish(self) -> dict[str, Any]:
        """Measure the best weights, and remove the tensors that resuming needed."""
        trainer, progress = self.trainer, self.trainer.progress
        if not progress.epoch:  # a pretrained model without training
            self.save()
            self.keep_weights()
        trainer.model = build_trained(self.writer.folder, trainer.architecture).to(trainer.device)
        trainer.export(self.writer.folder)
        result = {
            f"{split}_perplexity": trainer.measure(split, self.watch).perplexity
            for split in trainer.config.measured_splits
        }
        event = self.write_event("end", epochs=progress.epoch, best_epoch=progress.best_epoch, **result)
        notes = {"result": result, "progress": asdict(progress), **self.conditions}
        self.writer.save_state({}, {**notes, "log_size": self.log.size})
        self.watch(event)
        return result


def train(
    settings: RunSettings,
    corpus: Corpus,
    folder: Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    save_seconds: float | None = None,
    watch: Watch = ignore,
) -> dict[str, Any]:
    """Train in a run directory, from its last saved state to the end. Returns the perplexities of the best weights.

    The watch gets the events "begin", "step", "epoch" and "end", which are logged too, and "progress" for every batch.
    If it raises `Stopped`, the state is saved first.
    """
    settings.check(corpus)
    choose_precision(precision, choose_device(device))  # refuse before writing anything
    with lock_run(folder, settings.resolve(corpus), corpus) as writer:
        tensors, before = writer.load_state()
        if "result" in before:
            return before["result"]
        where = choose_device(before.get("device", "auto") if device == "auto" else device)
        precision = choose_precision(precision, where, before.get("precision"))
        # the last bits of a sum depend on how many threads share it
        with keep_memory(), use_threads(threads or before.get("threads")):
            trainer = settings.build_trainer(corpus, where, precision)
            if before:
                trainer.restore(tensors, before)
            log = Log(folder, before.get("log_size", 0))
            patience = trainer.save_seconds if save_seconds is None else save_seconds
            with open_tensorboard(folder, log) as curves:
                return Session(writer, trainer, log, curves, watch, precision, patience).train()
