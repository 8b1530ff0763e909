"""The front ends of other servers: each streams as many tokens as it is asked for, over its engine's stub."""

import asyncio
import sys

import pytest

from bench.gateway import MeasuredServer, ServerProcess
from bench.gateway_load.client import stream_all
from bench.gateway_load.servers import Kind
from bench.peers.vllm_cpu import ENVIRONMENT

TOKENS = 5


@pytest.mark.parametrize("rate", [100.0, 0.0])
@pytest.mark.parametrize(
    "kind",
    [
        "mlx_lm",
        pytest.param(
            "vllm",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(bool(ENVIRONMENT.missing), reason=f"vLLM is {ENVIRONMENT.missing}"),
            ],
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_front_end_streams_what_it_is_asked_for(kind: Kind, rate: float) -> None:
    if kind == "mlx_lm":
        pytest.importorskip("mlx_lm")
    server = ServerProcess(MeasuredServer(kind), 3, rate, TOKENS)
    try:
        received, _ = asyncio.run(stream_all(server.port, 3, TOKENS))
        own, others = server.cpu_seconds()
    finally:
        server.stop()
    assert received.errors == []
    assert 3 * TOKENS <= received.chunks <= 3 * (TOKENS + 1)  # mlx_lm.server sends the reason of the end by itself
    assert (own > 0, others) == (True, 0)
