"""Shapes written in the types are checked while the tests run."""

import os
import shutil

import pytest
import torch
import typecheck
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

typecheck.install()

# tensors are small here: a second thread would mostly wait, and on a busy machine wait long
torch.set_num_threads(1)

settings.register_profile("laws", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("laws")

from members import MODELS, Specimen  # noqa: E402 (the hook has to be there first)

from eosin.cli import progress  # noqa: E402

progress.PATIENCE = 600  # on a busy machine anything may take so long that it is announced


def pytest_runtest_setup() -> None:
    typecheck.calls.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a run could not check is said where it is seen: in the last lines."""
    if not shutil.which("chromedriver"):
        terminalreporter.write_line(
            "the browser checks of the report did NOT run: install the packages chromium and chromium-driver"
        )


@pytest.fixture(params=MODELS, ids=str)
def specimen(request: pytest.FixtureRequest) -> Specimen:
    """Each model of this package once, small, with random weights."""
    return request.param
