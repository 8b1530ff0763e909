"""Clients that send requests without a pause, and the requests of an operator."""

from typing import Any

import anyio

from tests.gateway.harness.real import Real
from tests.gateway.harness.serving import COMPLETION, events

STREAM = COMPLETION | {"max_tokens": 60, "ignore_eos": True, "stream": True}


async def ask(real: Real, path: str, **body: Any) -> dict[str, Any]:
    """Begin an operation, and follow it to its end."""
    begun = await real.client.post(path, json=body)
    assert begun.status_code == 202, begun.text
    number = begun.json()["operation"]["number"]
    while True:
        operation: dict[str, Any] = (await real.client.get("/admin/operation")).json()["operation"]
        assert operation["number"] == number
        if operation["outcome"] != "running":
            return operation
        await anyio.sleep(0.02)


class Traffic:
    """Clients that ask all the time, one long stream and one short request after the other, until the block ends."""

    def __init__(self, real: Real) -> None:
        self._real = real
        self.short: list[int] = []
        self.long: list[Any] = []
        self._stop = False

    async def __aenter__(self) -> "Traffic":
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        for task in (self._ask, self._ask, self._stream):
            self._group.start_soon(task)
        await self._real.until(lambda: len(self.short) > 2)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._stop = True
        await self._group.__aexit__(*error)
        assert set(self.short) == {200}
        for got in self.long:
            assert got[-1] == "[DONE]"
            assert got[-2]["choices"][0]["finish_reason"] == "length"

    async def _ask(self) -> None:
        while not self._stop:
            self.short.append((await self._real.client.post("/v1/completions", json=COMPLETION)).status_code)

    async def _stream(self) -> None:
        while not self._stop:
            async with self._real.client.stream("POST", "/v1/completions", json=STREAM) as response:
                self.long.append(await events(response))
