"""The Messages API over a real worker process, whose tokenizer has a token for each byte."""

import pytest

from tests.gateway.harness.real import launch, real_gateway

pytestmark = pytest.mark.anyio
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_the_count_of_a_prompt_is_that_of_its_message() -> None:
    async with real_gateway(launch("w0")) as real:
        counted = await real.client.post("/v1/messages/count_tokens", json=BODY)
        message = await real.client.post("/v1/messages", json=BODY | {"max_tokens": 4})
        system = await real.client.post("/v1/messages/count_tokens", json=BODY | {"system": "x" * 10_000})
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        refused = await real.client.post("/v1/messages/count_tokens", json=BODY | {"tools": tools})
    assert counted.json() == {"input_tokens": len(PROMPT)}
    assert message.json()["usage"]["input_tokens"] == len(PROMPT)
    assert system.status_code == 400
    assert "cannot fit into a context" in system.json()["error"]["message"]
    assert refused.status_code == 400
    assert "does not support tools" in refused.json()["error"]["message"]
