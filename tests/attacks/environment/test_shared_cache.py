"""Two gateways that compile into one empty cache folder at once."""

import concurrent.futures
import signal
from pathlib import Path

import httpx
import pytest

from tests.cli.commands.test_serve import read_until, serving, url_of

BODY = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_gateways_share_an_empty_cache(tmp_path: Path) -> None:
    pytest.importorskip("iree.runtime")
    cache = tmp_path / "cache"
    words = ["-m", "cli", "serve", "--port", "0", "--backend", "iree", "--cache-dir", str(cache)]

    def serve(number: int) -> str:
        with serving(words) as process:
            url = url_of(read_until(process, "ready"))
            model = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
            answer = httpx.post(f"{url}/v1/completions", json=BODY | {"model": model}, timeout=300, trust_env=False)
            workers = httpx.get(f"{url}/admin/workers", trust_env=False).json()["workers"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        assert [each["last_failure"] for each in workers] == [None]
        text: str = answer.json()["choices"][0]["text"]
        return text

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(serve, range(2))
    assert first == second
    assert list(cache.rglob("module.vmfb"))
    # The end of a server cuts off what it compiles in the background; the next compile of that module removes the rest.
    assert [each for each in cache.rglob("*.tmp") if each.parent.name != "graphs"] == []
