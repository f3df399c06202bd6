"""Run directories of earlier versions: they open, they mean the same, and one that was stopped resumes.

Version 0.2.0.dev0 wrote `old_run`, with one thread in float32: `stopped` after nine steps, `finished` at the end.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import eosin
from eosin.data.batches import gather
from eosin.loading import open_run
from eosin.training.config import Config
from eosin.training.loop import train

OLD = Path(__file__).parent / "old_run"
RESULT = {
    "train_perplexity": 62.30721073478888,
    "valid_perplexity": 43.02198467415514,
    "test_perplexity": 71.9170047902958,
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "old")


def test_an_old_run_opens(old: Path):
    run = open_run(old / "finished")
    assert isinstance(run.settings, Config)
    assert run.settings.training.learning_rate == 0.01
    assert run.table["head"] == {"kind": "self-terminating", "epsilon": 1e-05}
    assert run.origin == {"run": "finished", "settings": "1b3aad034ff55123", "initialisation": 0}
    assert len(run.corpus.train) == 108
    batch = gather(run.corpus.splits["test"], torch.arange(6))
    with torch.no_grad():
        nats = -run.model.score(batch.prefix, batch.continuation)[batch.wanted].mean()
    assert float(nats.exp()) == pytest.approx(RESULT["test_perplexity"], rel=1e-4)
    assert type(eosin.load(old / "finished")) is eosin.NeuralLM


def test_an_old_run_that_was_stopped_resumes(old: Path):
    run = open_run(old / "stopped")
    before = (old / "stopped" / "log.jsonl").read_text(encoding="utf-8")
    result = train(run.settings, run.corpus, run.folder)
    assert result == pytest.approx(RESULT, rel=1e-3)
    after = (old / "stopped" / "log.jsonl").read_text(encoding="utf-8")
    assert after.startswith(before)
    kinds = [[json.loads(line)["event"] for line in text.splitlines()] for text in (after, log_of(old / "finished"))]
    assert kinds[0] == kinds[1]


def test_an_old_run_that_is_finished_is_not_trained_again(old: Path):
    run = open_run(old / "finished")
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    assert train(run.settings, run.corpus, run.folder) == RESULT
    assert before == {path.name: path.read_bytes() for path in run.folder.iterdir() if path.name != "lock"}


def log_of(folder: Path) -> str:
    return (folder / "log.jsonl").read_text(encoding="utf-8")
