"""The distributions of the two pages on adding, which are written as the pages say, and serve from a worker process."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from cli.commands.doctor import probe_backend
from cli.config.panels.backend_name import backend_names
from tests.baton_serve.plugin_folder import on_the_path, write_project
from tests.checkpoints import make_checkpoint
from tests.cli.commands.test_serve import DEADLINE_S, read_until, serving
from tests.docs.commands import ROOT
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk
from workers.host.probe import Probe
from workers.inspection.inspection import Inspection
from workers.process.backends import load_runner
from workers.process.spec import WorkerSpec

PAGES = ("adding-a-model.md", "adding-a-runner.md")
PROMPT = (5, 9, 40, 7, 300, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions."""
    made = tmp_path_factory.mktemp("installed")
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text().partition("## In a distribution of your own\n")[2]
        (project,) = re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        modules = re.findall(r"^```python\n# (\w+/\w+\.py)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        assert modules, page
        write_project(made, project, dict(modules))
    return made


@pytest.fixture(scope="module")
def installed(folder: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch, on_the_path(folder, patch):
        yield folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), layers=1)


@pytest.fixture(scope="module")
def acme(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights under the name of the family that the page adds."""
    path = make_checkpoint(tmp_path_factory.mktemp("acme"), layers=1)
    config = json.loads((path / "config.json").read_text())
    renamed = {"model_type": "acme_llama", "architectures": ["AcmeLlamaForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config | renamed))
    return path


def spec_of(path: Path, backend: str, cache_dir: Path | None = None) -> WorkerSpec:
    return WorkerSpec(
        name="w0",
        model_name="m",
        model_path=str(path),
        backend=backend,
        dtype="float32",
        context=64,
        max_batch_size=2,
        cache_dir=str(cache_dir or ""),
        threads=1,
    )


def test_a_worker_process_serves_the_family_on_the_backend(installed: Path, acme: Path) -> None:
    command = ("-m", "cli", "serve", str(acme), "--name", "m", "--backend", "acme", "--port", "0", "--context", "64")
    with serving(command, {"PYTHONPATH": str(installed)}) as process:
        lines = [json.loads(line) for line in read_until(process, "ready")]
        assert lines[-1]["backend"] == "acme"
        body = {"model": "m", "prompt": "Hello", "max_tokens": 8}
        answer = httpx.post(f"{lines[-1]['url']}/v1/completions", json=body, timeout=DEADLINE_S)
    assert answer.json()["usage"]["completion_tokens"] == 8, answer.text
    loaded = {(line["name"], line["distribution"]) for line in lines if line["event"] == "plugin_loaded"}
    assert loaded == {("acme", "acme-baton 1.0"), ("acme_llama", "acme-llama 1.0")}


def logits(spec: WorkerSpec) -> NDArray[np.float32]:
    runner = load_runner(spec, lambda phase, done, total: None)
    try:
        return np.asarray(runner.logits(Chunk(0, PROMPT, 0, 0)))
    finally:
        runner.close()


def test_the_renamed_family_is_described_as_llama(installed: Path, llama: Path, acme: Path) -> None:
    own, other = ModelConfig.from_dir(llama), ModelConfig.from_dir(acme)
    assert other.family == "acme_llama"
    assert replace(other, family="llama") == own


@pytest.mark.parametrize("backend", [pytest.param("iree", marks=pytest.mark.exhaustive), "mlx"])
def test_the_renamed_family_computes_what_llama_computes(
    installed: Path, llama: Path, acme: Path, backend: str, tmp_path: Path
) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
    own, other = (logits(spec_of(path, backend, tmp_path)) for path in (llama, acme))
    np.testing.assert_array_equal(own, other)


def test_the_commands_know_the_backend(installed: Path, acme: Path) -> None:
    assert backend_names()[-1] == "acme"
    assert probe_backend("acme") == [Probe("acme", "pretended", True, "a matrix product came out right")]
    found = Inspection.of(spec_of(acme, "auto"), ("iree", "mlx", "acme"))
    assert {each.backend: each.mode for each in found.backends} == dict.fromkeys(("iree", "mlx", "acme"), "batched")
    assert found.description.family == "acme_llama"
