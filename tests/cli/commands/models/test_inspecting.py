"""`baton inspect`, as a user runs it."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.baton_serve.installation import run as run_process
from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.hostile_files import HOSTILE
from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return CliRunner(env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})


def test_the_tables_name_backends_tensors_and_memory(runner: CliRunner, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    result = runner.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    for words in (
        "LlamaForCausalLM",
        "served, in batches",
        "embedding, head",
        "--kv-dtype",
        "1000 tokens",
        "/v1/messages",
        "by the cosine of",
    ):
        assert words in result.output
    every = runner.invoke(app, ["inspect", str(path), "--tensors"]).output
    assert "model.layers.1.self_attn.k_proj.weight" in every
    assert "1.qkv" in every


def test_the_object_has_each_tensor_on_request(runner: CliRunner, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    found = json.loads(runner.invoke(app, ["inspect", str(path), "--backend", "iree", "--json", "--tensors"]).output)
    assert found["served"] is True
    assert [each["backend"] for each in found["backends"]] == ["iree"]
    assert found["tensors"]["counts"] == {"read": len(found["tensors"]["tensors"])}
    assert found["memory"]["kv"]["auto"]["1000"] > 0
    assert (found["tasks"]["rerank"], found["tasks"]["endpoints"][0]) == ("embeddings", "/v1/chat/completions")
    short = json.loads(runner.invoke(app, ["inspect", str(path), "--json"]).output)
    assert "tensors" not in short["tensors"]


def test_a_refused_checkpoint_exits_with_status_1_and_says_why(runner: CliRunner, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    (path / "model.safetensors").write_bytes(b"\xff" * 64)
    result = runner.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 1
    assert "is not a safetensors file" in result.output
    assert "refused" in result.output


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[Path, Path]:
    """A model and its adapter, which names it."""
    path = make_checkpoint(tmp_path / "model")
    adapter = make_lora(tmp_path / "lora", path, targets=ATTENTION, rank=4, base_model_name_or_path=str(path))
    return path, adapter


def test_an_adapter_is_described_and_compared_with_the_model_that_it_names(
    runner: CliRunner, adapted: tuple[Path, Path]
) -> None:
    path, adapter = adapted
    result = runner.invoke(app, ["inspect", str(adapter)])
    assert result.exit_code == 0, result.output
    for words in ("PEFT", "2 k_proj, 2 o_proj, 2 q_proj, 2 v_proj", "It fits: `--lora-modules NAME=DIR` serves it."):
        assert words in result.output
    found = json.loads(runner.invoke(app, ["inspect", str(adapter), "--json"]).output)
    assert (found["served"], found["layout"], found["ranks"], found["scales"]) == (True, "peft", [4], [2.0])
    assert (found["modules"]["q_proj"], found["model"], found["base_model"]) == (2, str(path), str(path))


def test_an_adapter_of_another_model_is_refused_by_the_tensor(
    runner: CliRunner, adapted: tuple[Path, Path], tmp_path: Path
) -> None:
    path, adapter = adapted
    other = make_checkpoint(tmp_path / "other", layers=1)
    result = runner.invoke(app, ["inspect", str(adapter), "--base", str(other)])
    assert result.exit_code == 1
    assert "adapters of llama may change" in result.output
    assert "not model.layers.1.self_attn" in result.output
    small = runner.invoke(app, ["inspect", str(adapter), "--max-lora-rank", "3"])
    assert (small.exit_code, "r: 4 is more than max_lora_rank, 3" in small.output) == (1, True)
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": "org/away"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    away = runner.invoke(app, ["inspect", str(adapter)])
    assert (away.exit_code, "name a model on this machine with --base" in away.output) == (0, True)
    for base, words in (("org/away", "is not on this machine: `baton pull org/away`"), ("/none", "no such directory")):
        result = runner.invoke(app, ["inspect", str(adapter), "--base", base])
        assert (result.exit_code, words in result.output) == (1, True), result.output
    both = runner.invoke(app, ["inspect", str(path), "--base", str(path)])
    assert (both.exit_code, "is not the directory of a LoRA adapter" in both.output) == (2, True)


def test_a_hostile_adapter_gets_a_sentence(runner: CliRunner, adapted: tuple[Path, Path]) -> None:
    path, adapter = adapted
    words = HOSTILE["header of 1 GiB"](adapter)
    result = runner.invoke(app, ["inspect", str(adapter), "--base", str(path)])
    assert (result.exit_code, words in result.output) == (1, True), result.output


GARBAGE = {
    "a file": (None, "is a file"),
    "an empty folder": ({}, "config.json: there is no such file"),
    "an empty gguf": ({"x.gguf": b""}, "is empty, and not a GGUF file"),
    "config is a list": ({"config.json": b"[]"}, "is not a JSON object"),
    "config is not json": ({"config.json": b"\xff\xfe"}, "is not UTF-8"),
}


@pytest.mark.parametrize("case", sorted(GARBAGE))
def test_garbage_gets_a_sentence(runner: CliRunner, tmp_path: Path, case: str) -> None:
    files, words = GARBAGE[case]
    path = tmp_path / "garbage"
    if files is None:
        path.write_bytes(b"garbage")
    else:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
    result = runner.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_model_of_the_hub_that_is_not_here_is_not_downloaded(runner: CliRunner) -> None:
    result = runner.invoke(app, ["inspect", "org/name:Q4_K_M"])
    assert result.exit_code == 1
    assert "org/name:Q4_K_M is not on this machine: `baton pull org/name:Q4_K_M` downloads it" in result.stderr


IMPORTED = """
import sys
from typer.testing import CliRunner
from cli.main import app
assert CliRunner().invoke(app, ["inspect", "--tensors"]).exit_code == 0
libraries = {"mlx.core", "mlx_lm.utils", "jax", "iree.compiler.ir", "iree.runtime.system_api", "torch", "transformers"}
print(sorted(libraries & {*sys.modules}))
"""


def test_no_model_library_is_imported() -> None:
    assert run_process(sys.executable, "-c", IMPORTED).strip() == "[]"
