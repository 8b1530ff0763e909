"""What a worker says before it loads, and its load on a real backend that is always there."""

import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.process.process import scripted
from workers.checkpoints.json_files import CheckpointError
from workers.engine.runner import Chunk, Draw, Row, RunnerCapabilities
from workers.engine.scripted_runner import ScriptedRunner
from workers.errors import LoadRefused
from workers.process import loading
from workers.process.loading import Described, describe, kv_tokens, load, warm_up
from workers.text.byte_tokenizer import ByteTokenizer


def test_a_scripted_worker_needs_no_files() -> None:
    assert describe(scripted(context=64)) == Described("scripted", "none", 64, "scripted", "scripted")
    phases: list[tuple[str, int, int]] = []
    loaded = load(scripted(context=64, max_batch_size=3), lambda *progress: phases.append(progress))
    assert isinstance(loaded.vocabulary, ByteTokenizer)
    assert loaded.context == 64
    assert loaded.engine.gauges().steps == 0
    assert phases[0] == ("start backend", 0, 1)


def test_a_load_that_fails_after_its_runner_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedRunner] = []
    monkeypatch.setattr(ScriptedRunner, "close", lambda runner: closed.append(runner))
    with pytest.raises(LoadRefused, match="kv_bytes: 63 bytes hold 63 tokens, fewer than the context of 64"):
        load(scripted(context=64, kv_bytes=63), lambda *progress: None)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("kv_bytes", "kv_rows", "rows"), [(0, 0, None), (0, 700, 700), (640 * 3 + 2, 700, 640), (512 * 3, 0, 512)]
)
def test_the_pool_is_what_was_asked_for_or_what_the_runner_has_memory_for(
    kv_bytes: int, kv_rows: int, rows: int | None
) -> None:
    capabilities = RunnerCapabilities("", "", "float32", 4, 512, 9, (8,), row_bytes=3, kv_rows=kv_rows)
    assert kv_tokens(scripted(kv_bytes=kv_bytes), capabilities) == rows
    with pytest.raises(LoadRefused, match="hold 511 tokens, fewer than the context of 512"):
        kv_tokens(scripted(kv_bytes=512 * 3 - 1), capabilities)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_positions=512)


def describe_model(path: Path, **fields: Any) -> Described:
    return describe(scripted(**{"backend": "mlx", "model_path": str(path), **fields}))


def test_a_model_describes_itself(checkpoint: Path) -> None:
    pytest.importorskip("mlx.core")
    described = describe_model(checkpoint)
    assert (described.backend, described.context) == ("mlx", 512)
    assert describe_model(checkpoint, context=64, device="cpu").context == 64


def test_the_default_device_is_the_one_that_will_compute(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device import drivers

    monkeypatch.setattr(drivers, "cores_each", lambda workers: 8 // workers)
    small = describe_model(checkpoint, backend="iree")
    assert small.device == describe_model(checkpoint, backend="iree", workers=2).device == "local-sync"
    monkeypatch.setattr(drivers, "FEW_PARAMETERS", 0)
    large = [describe_model(checkpoint, backend="iree", workers=workers) for workers in (1, 8)]
    assert [each.device for each in large] == ["local-task", "local-sync"]
    assert {each.digest for each in large} == {small.digest}, "its threads change no token"


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float32"}, {"quantize": "int8"}, {"context": 64}, {"device": "cpu"}],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_is_of_all_that_decides_tokens(checkpoint: Path, change: dict[str, Any]) -> None:
    pytest.importorskip("mlx.core")
    same = {"max_batch_size": 2, "name": "another", "threads": 1}
    assert describe_model(checkpoint).digest == describe_model(checkpoint, **same).digest
    assert describe_model(checkpoint).digest != describe_model(checkpoint, **change).digest


def test_workers_are_alike_where_cpus_round_alike(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device.cpu import Cpu

    def digest(*features: str) -> str:
        monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", frozenset(features)))
        return describe_model(checkpoint, backend="iree").digest

    assert digest("avx2", "fma", "hypervisor") == digest("avx2", "fma", "avx512vnni")
    assert digest("avx2", "fma") != digest("avx2", "fma", "avx512f")
    assert digest("avx512f", "avx512bf16") != digest("avx512f", "avx512bf16", "sse4a")


@pytest.mark.parametrize(
    ("backend", "device", "alike"),
    [
        ("iree", "", True),
        ("iree", "local-sync", True),
        ("iree", "generic-task", True),
        ("iree", "cuda://1", False),
        ("iree", "vulkan", False),
        ("mlx", "cpu", True),
        ("mlx", "gpu", False),
    ],
)
def test_the_gpus_of_two_machines_are_not_taken_to_be_alike(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, backend: str, device: str, alike: bool
) -> None:
    pytest.importorskip("iree.runtime" if backend == "iree" else "mlx.core")
    monkeypatch.setattr(platform, "node", lambda: "here")
    here = describe_model(checkpoint, backend=backend, device=device).digest
    assert describe_model(checkpoint, backend=backend, device=device).digest == here
    monkeypatch.setattr(platform, "node", lambda: "there")
    assert (describe_model(checkpoint, backend=backend, device=device).digest == here) is alike


def test_another_version_may_compute_other_tokens(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    before, version = describe_model(checkpoint).digest, metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(loading, "__version__", "0")
        assert describe_model(checkpoint).digest != before
    monkeypatch.setattr(metadata, "version", lambda name: "0" if name == "mlx" else version(name))
    assert describe_model(checkpoint).digest != before


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        describe_model(tmp_path)


@pytest.mark.parametrize(("step_tokens", "chunks"), [(1, 1), (16, 1), (17, 2), (512, 32)])
def test_the_warm_up_says_what_a_full_step_may_take(step_tokens: int, chunks: int) -> None:
    times = iter([100.0, 102.0, 102.5])  # 2 s for the smallest chunk, which holds 16 tokens, and 0.5 s for the row
    assert warm_up(ScriptedRunner(), step_tokens, lambda: next(times)) == 2.0 * chunks + 0.5


def test_the_warm_up_leaves_the_runner_as_it_was() -> None:
    warm, cold = ScriptedRunner(), ScriptedRunner()
    warm_up(warm, 512)
    assert (warm._history, warm.violations) == (cold._history, [])
    assert warm.calls == 2


class WithoutNumbers(ScriptedRunner):
    """Of a model whose logits are not numbers from some call on."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def prefill(self, chunks: Sequence[Chunk], draws: Sequence[Draw | None]) -> list[int | None]:
        tokens = super().prefill(chunks, draws)
        return [None] if self.at == "prefill" else tokens

    def decode(self, rows: Sequence[Row]) -> list[int | None]:
        super().decode(rows)
        return [None]


@pytest.mark.parametrize("at", ["prefill", "decode"])
def test_a_model_without_numbers_is_refused_before_it_serves(at: str) -> None:
    with pytest.raises(LoadRefused, match=r"the model's logits are not numbers: its weights are damaged$"):
        warm_up(WithoutNumbers(at), 512)
