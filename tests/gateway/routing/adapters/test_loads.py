"""Adapters that requests load and unload, on the workers of a running server."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import events

pytestmark = pytest.mark.anyio

PROMPT = "This is a prompt that is long enough for its cache rows to be worth keeping for the next request. "
COMPLETION = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


def make_adapter(directory: Path, weights: bytes) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return str(directory)


async def load(real: Real, name: str, path: str, **fields: Any) -> httpx.Response:
    return await real.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path} | fields)


async def unload(real: Real, name: str) -> httpx.Response:
    return await real.client.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def asked(real: Real, model: str) -> tuple[list[int], int]:
    """The tokens of a completion, and how many of its prompt were cached."""
    answer = (await real.client.post("/v1/completions", json=COMPLETION | {"model": model})).json()
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_adapters_come_and_go_and_streams_keep_theirs(tmp_path: Path) -> None:
    workers = [launch(name, rate=150, max_loras=2, lora_modules=["fixed"]) for name in ("a", "b")]
    settings: dict[str, Any] = {"lora_dirs": (str(tmp_path),), "metrics_names": "vllm"}
    one, two = make_adapter(tmp_path / "one", b"1"), make_adapter(tmp_path / "two", b"2")
    async with real_gateway(*workers, **settings) as real:
        loaded = await load(real, "sql", "one")
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        first = await asked(real, "sql")
        plain, fixed = [(await asked(real, name))[0] for name in ("tiny", "fixed")]
        assert len({tuple(each) for each in (plain, fixed, first[0])}) == 3
        listed = (await real.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["parent"]) for each in listed] == [("tiny", None), ("fixed", "tiny"), ("sql", "tiny")]
        assert (await real.client.get("/admin/models")).json()["models"][0]["adapters"] == ["fixed", "sql"]
        again = await load(real, "sql", one)
        assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
        full = await load(real, "more", two)
        assert (full.status_code, "unload one, or set --max-loras" in full.text) == (400, True)

        async def streamed() -> list[int]:
            body = COMPLETION | {"model": "sql", "stream": True, "max_tokens": 200}  # it lasts for all that follows
            async with real.client.stream("POST", "/v1/completions", json=body) as response:
                chunks = await events(response)
            return [token for chunk in chunks[:-1] for choice in chunk["choices"] for token in choice["token_ids"]]

        pids = {each.name: each.status.pid for each in real.workers}
        metrics = ""

        async def unload_and_kill() -> None:
            nonlocal metrics
            running = real.router.sequences
            await real.until(lambda: any(each.worker and len(each.tokens) > 5 for each in running()))
            metrics = (await real.client.get("/metrics")).text
            assert (await unload(real, "sql")).text == "Success: LoRA adapter 'sql' removed successfully."
            make_adapter(tmp_path / "one", b"other weights")  # which workers that start again must not read
            pid = pids[next(each.worker for each in running())]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert (await asked_status(real, "sql")) == 404
            full = await load(real, "sql", two)
            assert (full.status_code, "have requests that are not answered yet" in full.text) == (400, True)

        tokens, _ = await gather(streamed, unload_and_kill)
        assert tokens[:40] == first[0], "the same weights after the death of its worker, and after the unload"
        assert 'baton_adapter_loaded{adapter="sql",model="tiny"} 1.0' in metrics
        info = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""}'
        assert info in metrics
        await real.until(lambda: not real.router.pool.runtime.wires())
        assert (await unload(real, "sql")).status_code == 404

        assert (await load(real, "sql", two)).status_code == 200
        other, cached = await asked(real, "sql")
        assert (other != first[0], cached) == (True, 0)
        assert [(await asked(real, name))[0] for name in ("tiny", "fixed")] == [plain, fixed]


async def asked_status(real: Real, model: str) -> int:
    return (await real.client.post("/v1/completions", json=COMPLETION | {"model": model})).status_code


async def test_a_worker_that_was_restarted_has_the_adapters_and_names_are_replaced(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"admin_key": "admin", "api_key": "user"}
    one, two = make_adapter(tmp_path / "one", b"1"), make_adapter(tmp_path / "two", b"2")
    async with real_gateway(launch("a", max_loras=3), lora_dirs=(str(tmp_path),), **settings) as real:
        real.client.headers["authorization"] = "Bearer user"
        assert (await load(real, "sql", one)).status_code in (401, 403)
        assert (await unload(real, "sql")).status_code in (401, 403)
        user, real.client.headers["authorization"] = "Bearer user", "Bearer admin"
        assert (await load(real, "sql", one)).status_code == 200
        for path, status, text in (
            ("/etc", 400, "not below a folder of the setting `lora_dirs`"),
            ("../one", 400, "not below"),
            ("none", 404, "no directory"),
            ("", 400, "give the path"),
        ):
            refused = await load(real, "bad", path)
            assert (refused.status_code, text in refused.text) == (status, True), refused.text
        Path(make_adapter(tmp_path / "link", b"4")).joinpath("adapter_config.json").unlink()
        (tmp_path / "link/adapter_config.json").symlink_to("/etc/hostname")
        assert "link to a file" in (await load(real, "bad", "link")).text
        broken = Path(make_adapter(tmp_path / "broken", b"3"))
        (broken / "adapter_config.json").write_text("no JSON")
        refused = await load(real, "bad", "broken")
        assert (refused.status_code, "adapter_config.json" in refused.text) == (400, True)
        for name in ("tiny", "a\n", "n" * 96, ""):
            assert (await load(real, name, two)).json()["error"]["param"] == "lora_name"
        assert (await load(real, "n" * 95, two)).status_code == 200
        assert (await unload(real, "n" * 95)).status_code == 200

        real.client.headers["authorization"] = user
        before, cached = await asked(real, "sql")
        assert cached == 0
        warm, cached = await asked(real, "sql")
        assert (warm, cached > 0) == (before, True)
        (worker,) = real.workers
        pid = worker.status.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await real.until(lambda: worker.status.incarnation > 1)
        assert (await asked(real, "sql"))[0] == before, "it waits until the new process has the adapter"
        real.client.headers["authorization"] = "Bearer admin"
        assert (await load(real, "sql", two, load_inplace=True)).status_code == 200
        real.client.headers["authorization"] = user
        other, cached = await asked(real, "sql")
        assert (other != before, cached) == (True, 0), "the version before it has rows of its own"


async def test_without_the_setting_there_are_no_such_routes() -> None:
    async with real_gateway(launch("a")) as real:
        assert (await load(real, "sql", "/tmp")).status_code == 404
        assert (await unload(real, "sql")).status_code == 404
