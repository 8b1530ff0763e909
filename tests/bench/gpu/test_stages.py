"""The stages of a GPU's check on a CPU, so that only the GPU is new to them there."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")
pytest.importorskip("jax", reason="the IREE backend is not installed: pip install 'baton[iree]'")

import jax
from msgspec.structs import replace

from bench.gpu import stages
from bench.gpu.stages import StageSizes, StageSpec
from tests.compiling import compiling_here
from workers.iree.device.drivers import GENERIC_DEVICE


@pytest.fixture
def _jax_as_it_was() -> Iterator[None]:
    """A stage has a process of its own, where it may look for more than the CPU."""
    yield
    jax.config.update("jax_platforms", "cpu")


@pytest.mark.slow
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
