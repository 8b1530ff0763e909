"""`suffix`, on a server of a model with fill-in-the-middle tokens and a real backend."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from cli.config.launch import worker_command
from gateway.fleet.launch import WorkerLaunch
from models import builtin_path
from tests.gateway.harness.real import Real, real_gateway
from workers.process.spec import WorkerSpec

pytestmark = pytest.mark.anyio

TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def checkpoint(path: Path) -> Path:
    """Copy the built-in model, with control tokens in place of the last ones of its vocabulary."""
    shutil.copytree(builtin_path(), path)
    file = path / "tokenizer.json"
    description = json.loads(file.read_text())
    model = description["model"]
    last = sorted(model["vocab"], key=model["vocab"].__getitem__)[-len(TOKENS) :]
    model["merges"] = [merge for merge in model["merges"] if "".join(merge) not in last]
    for name, replaced in zip(TOKENS, last, strict=True):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        description["added_tokens"].append({"id": model["vocab"].pop(replaced), "content": name, **flags})
    file.write_text(json.dumps(description))
    return path


async def complete(real: Real, **fields: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = await real.client.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_gap_is_filled_by_the_models_control_tokens(tmp_path: Path) -> None:
    pytest.importorskip("iree.runtime")
    path = checkpoint(tmp_path / "model")
    spec = WorkerSpec("w0", "tiny", str(path), "iree", log_level="warning")
    before, after = "The capital of ", " is Paris."
    written = f"{TOKENS[0]}{before}{TOKENS[1]}{after}{TOKENS[2]}"
    prompt = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).encode(written).ids
    async with real_gateway(WorkerLaunch(spec.name, spec.model_name, worker_command(spec))) as real:
        filled = await complete(real, prompt=before, suffix=after)
        plain = await complete(real, prompt=prompt)
    for choice in ("text", "token_ids", "finish_reason"):
        assert filled["choices"][0][choice] == plain["choices"][0][choice]
    assert filled["choices"][0]["text"]
    assert filled["usage"]["prompt_tokens"] == len(prompt)
