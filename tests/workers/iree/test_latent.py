"""Models with latent attention: the promises of all models."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.workers.iree.conftest import Load, fetch_all
from tests.workers.iree.test_gate import check_logits
from tests.workers.iree.test_hybrid import Kept
from workers.iree.runner import IreeRunner


@pytest.fixture(scope="module")
def loaded(load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IreeRunner]:
    runner = load(make_checkpoint(tmp_path_factory.mktemp("latent"), "minicpm3"), dtype="bfloat16", quantize="int8")
    fetch_all(runner, "decode_1")
    yield runner
    runner.close()


@pytest.fixture
def latent(loaded: IreeRunner) -> IreeRunner:
    Kept(loaded).close()
    return loaded


def test_logits_are_bitwise_identical(latent: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any decode graph, beside any neighbours, prefilled in any chunks."""
    check_logits(latent, monkeypatch)


def test_prefix_gate(latent: IreeRunner) -> None:
    made: Any = lambda: Kept(latent)  # noqa: E731
    assert run_prefix_gate(made).hits > 0


def test_gate_with_drafts(latent: IreeRunner) -> None:
    made: Any = lambda: Kept(latent)  # noqa: E731
    report = run_gate(made, requests=32, max_tokens=16, speculates=True)
    assert (report.requests, report.most_active) == (32, 8)
    assert min(report.cancelled, report.resumed, report.reported, report.prompts_reported) > 0
    assert report.drafted > 50
    assert 0 < report.accepted < report.drafted
