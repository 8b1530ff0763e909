"""A worker's description before its model is loaded: device, context and digests."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.json_files import CheckpointError
from workers.errors import LoadRefused
from workers.host.topology import Core, Topology
from workers.process.startup.describe import Described, describe


def test_a_scripted_worker_describes_itself_without_files() -> None:
    assert describe(scripted(context=64)) == Described("scripted", "none", 64, 64, "", "scripted", "scripted")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_positions=512)


def describe_model(path: Path, **fields: Any) -> Described:
    return describe(scripted(**{"backend": "mlx", "model_path": str(path), **fields}))


def test_a_model_describes_itself(checkpoint: Path) -> None:
    pytest.importorskip("mlx.core")
    described = describe_model(checkpoint)
    assert (described.backend, described.context, described.context_bound) == ("mlx", 512, "")
    less = describe_model(checkpoint, context=64, device="cpu")
    assert (less.context, less.model_context, less.context_bound) == (64, 512, "setting")


def test_the_default_device_is_that_of_the_runner(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device import drivers

    eight = Topology(tuple(Core((cpu,)) for cpu in range(8)))
    monkeypatch.setattr(Topology, "of_host", lambda: eight)
    small = describe_model(checkpoint, backend="iree")
    assert small.device == describe_model(checkpoint, backend="iree", workers=2).device == "local-sync"
    monkeypatch.setattr(drivers, "SMALL_MODEL_PARAMETERS", 0)
    large = [describe_model(checkpoint, backend="iree", workers=workers) for workers in (1, 8)]
    assert [each.device for each in large] == ["local-task", "local-sync"]
    assert {each.digest for each in large} == {small.digest}, "the number of threads does not affect tokens"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32"},
        {"quantize": "int8"},
        {"kv_dtype": "int8"},
        {"context": 64},
        {"device": "cpu"},
        {"parse_special": True},
        {"generation_config": "none"},
        {"tool_parser": "hermes"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_covers_everything_that_determines_tokens(checkpoint: Path, change: dict[str, Any]) -> None:
    pytest.importorskip("mlx.core")
    same = {"max_batch_size": 2, "name": "another", "threads": 1}
    assert describe_model(checkpoint).digest == describe_model(checkpoint, **same).digest
    assert describe_model(checkpoint).digest != describe_model(checkpoint, **change).digest


def test_cpus_that_round_identically_have_one_digest(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device.cpu import Cpu

    def digest(*features: str) -> str:
        monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", frozenset(features)))
        return describe_model(checkpoint, backend="iree").digest

    assert digest("avx2", "fma", "hypervisor") == digest("avx2", "fma", "avx512vnni")
    assert digest("avx2", "fma") != digest("avx2", "fma", "avx512f")
    assert digest("avx512f", "avx512bf16") != digest("avx512f", "avx512bf16", "sse4a")


def test_instructions_of_another_cpu_are_part_of_the_digest(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device.cpu import TARGETS, Cpu

    targets = {name: target for name, target in TARGETS.items() if target.machine == "x86_64"}
    features = frozenset[str]().union(*(target.features for target in targets.values()))
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", features))
    digests = {cpu: describe_model(checkpoint, backend="iree", cpu=cpu).digest for cpu in ("host", *targets)}
    assert digests["avx2"] == digests["avx-vnni"] != digests["avx512"] == digests["avx512-vnni"] == digests["host"]
    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("x86_64", features | {"avx512bf16", "sse4a"}))
    assert describe_model(checkpoint, backend="iree", cpu="avx2").digest == digests["avx2"]
    assert describe_model(checkpoint, backend="iree").digest != digests["host"]


def test_only_instructions_of_aarch64_that_round_differently_are_part_of_the_digest(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("iree.runtime")
    from workers.iree.device.cpu import TARGETS, Cpu

    monkeypatch.setattr(Cpu, "of_host", lambda: Cpu("aarch64", TARGETS["neon-i8mm"].features))
    digests = {
        cpu: describe_model(checkpoint, backend="iree", cpu=cpu).digest for cpu in ("neon", "neon-dotprod", "neon-i8mm")
    }
    assert digests["neon"] == digests["neon-dotprod"] != digests["neon-i8mm"]
    monkeypatch.setattr("sys.platform", "darwin")
    assert describe_model(checkpoint, backend="iree", cpu="neon").digest != digests["neon"]


def test_instructions_are_refused_for_other_backends(checkpoint: Path) -> None:
    pytest.importorskip("mlx.core")
    with pytest.raises(LoadRefused, match="cpu: 'avx2' has no effect on the mlx backend"):
        describe_model(checkpoint, backend="mlx", cpu="avx2")
    with pytest.raises(LoadRefused, match="cpu: 'avx2' has no effect on the scripted backend"):
        describe_model(checkpoint, backend="scripted", cpu="avx2")


@pytest.mark.parametrize(
    ("backend", "device", "same"),
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
def test_the_gpus_of_two_machines_have_different_digests(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, backend: str, device: str, same: bool
) -> None:
    pytest.importorskip("iree.runtime" if backend == "iree" else "mlx.core")
    monkeypatch.setattr(platform, "node", lambda: "here")
    here = describe_model(checkpoint, backend=backend, device=device).digest
    assert describe_model(checkpoint, backend=backend, device=device).digest == here
    monkeypatch.setattr(platform, "node", lambda: "there")
    assert (describe_model(checkpoint, backend=backend, device=device).digest == here) is same


def test_another_version_has_another_digest(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    before, version = describe_model(checkpoint).digest, metadata.version
    with monkeypatch.context() as patch:
        patch.setattr("workers.process.startup.describe.__version__", "0")
        assert describe_model(checkpoint).digest != before
    monkeypatch.setattr(metadata, "version", lambda name: "0" if name == "mlx" else version(name))
    assert describe_model(checkpoint).digest != before


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        describe_model(tmp_path)


def test_recommended_sampling_determines_tokens(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    path = make_checkpoint(tmp_path, max_positions=512)
    before = describe_model(path).digest
    (path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert describe_model(path).digest != before
