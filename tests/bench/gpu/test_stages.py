"""The stages of a GPU's check on a CPU, so that only the GPU is new to them there."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton[iree]'")

import jax
import numpy as np
from msgspec.structs import replace

from bench.gpu import stages
from bench.gpu.executor import Executor, plain_plan
from bench.gpu.stages import StageSizes, StageSpec
from tests.compiling import compiling_here
from workers.engine.runner import Chunk
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.iree.runner import IreeRunner


@pytest.fixture
def _jax_as_it_was() -> Iterator[None]:
    """A stage has a process of its own, where it may look for more than the CPU."""
    yield
    jax.config.update("jax_platforms", "cpu")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("_jax_as_it_was")
def test_both_executors_generate_the_same(cache_dir: Path) -> None:
    """As on a GPU, with fewer graphs."""
    sizes = StageSizes(context=64, prefill=32)
    spec = StageSpec("engine", GENERIC_DEVICE, str(cache_dir), "tiny", sizes=sizes)
    with compiling_here():
        ours = stages.engine(spec)
    theirs = stages.jax_executor(replace(spec, stage="jax"))
    assert ours.tokens == theirs.tokens
    assert [len(tokens) for tokens in ours.tokens] == [sizes.steps] * sizes.slots
    for result in (ours, theirs):
        assert {"load s", "step ms", "prefill"} <= set(result.figures)


@pytest.mark.usefixtures("_jax_as_it_was")
def test_jax_reports_that_it_sees_no_gpu(tmp_path: Path) -> None:
    result = stages.jax_executor(StageSpec("jax", "cuda", str(tmp_path), "tiny", "bfloat16"))
    if not result.skipped:
        pytest.skip("it sees one")
    assert result.text == "JAX sees cpu and no gpu here: pip install 'jax[cuda12]'"


def test_the_small_stages(tmp_path: Path, cache_dir: Path) -> None:
    spec = StageSpec("doctor", GENERIC_DEVICE, str(cache_dir), sizes=stages.SMOKE, out=str(tmp_path / "out.json"))
    stages.main(msgspec.json.encode(spec).decode())
    assert "matrix product right" in json.loads(Path(spec.out).read_text())["text"]
    assert stages.memory(spec).figures["bandwidth"] > 0
    with pytest.raises(ValueError, match="stage: 'dance' is not one of doctor, memory, gate, engine, jax"):
        stages.main(msgspec.json.encode(replace(spec, stage="dance")).decode())


@pytest.mark.parametrize("wrong", ["", "score", "decode", "token", "no token", "nan"])
def test_wrong_logits_fail_a_stage(tmp_path: Path, wrong: str) -> None:
    """A gate alone compares a GPU with itself."""
    spec = StageSpec("gate", GENERIC_DEVICE, str(tmp_path), "tiny", "float32", StageSizes(context=64))
    path = stages.checkpoint(spec)

    right_logits = functools.cache(Executor(*plain_plan(path, "float32", 1, 64), 64).logits)

    def logits(chunk: Chunk) -> Any:
        right = right_logits(chunk.tokens)
        return {"score": right[:, ::-1], "nan": right * np.nan}.get(wrong, right)

    def row(chunk: Chunk, at: int) -> Any:
        return (logits(chunk) * (1.1 if wrong == "decode" else 1))[at : at + 1]

    def prefill(chunks: list[Chunk], specs: Any) -> list[int | None]:
        best = logits(chunks[0])[-1]
        return [{"token": int(best.argmin()), "no token": None}.get(wrong, int(best.argmax()))]

    scores = SimpleNamespace(score_row=row)
    runner = SimpleNamespace(logits=logits, _scores=scores, prefill=prefill, reset=lambda slot: None)
    runner.capabilities = SimpleNamespace(dtype="float32")
    if not wrong:
        assert stages.compare(path, spec, cast(IreeRunner, runner)) == 0
    else:
        with pytest.raises(AssertionError, match="logits are off by"):
            stages.compare(path, spec, cast(IreeRunner, runner))
