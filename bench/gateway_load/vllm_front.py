"""Child process of `bench/gateway.py`: the HTTP front end of vLLM, without its engine.

    python bench/gateway_load/vllm_front.py '{"rate": 50.0, "model": "FOLDER"}'

It needs the environment of vLLM. It is vLLM's own server, from its sockets to the rendering of each chunk, over an
engine client that makes the text of a token for every stream at once. What vLLM's server process does besides for each
token is left out: the messages of its engine, and detokenization.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.input_processor import InputProcessor

from bench.gateway_load.ticks import Ticks


class ScriptedEngine(AsyncLLM):  # type: ignore[misc]  # vLLM is not installed here
    """Generates `x` for each stream, `rate` times a second, or as fast as possible if that is 0."""

    def __init__(self, arguments: Any, rate: float) -> None:
        self.vllm_config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self.log_stats = False
        self.ticks = Ticks(rate)

    def __del__(self) -> None:
        """There is nothing to shut down."""

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        return False

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Admit every request."""

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        for number in range(1, sampling_params.max_tokens + 1):
            await self.ticks.next()
            last = number == sampling_params.max_tokens
            output = CompletionOutput(
                index=0,
                text="x",
                token_ids=[number],
                cumulative_logprob=None,
                logprobs=None,
                finish_reason="length" if last else None,
            )
            yield RequestOutput(
                request_id=request_id,
                prompt=None,
                prompt_token_ids=[1],
                prompt_logprobs=None,
                outputs=[output],
                finished=last,
            )


async def serve(spec: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    parser = make_arg_parser(FlexibleArgumentParser())
    words = ["--model", spec["model"], "--served-model-name", "scripted", "--host", "127.0.0.1", "--port", "0"]
    arguments = parser.parse_args([*words, "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"])
    address, listener = setup_server(arguments, reuse_port=False)
    listener.listen(4096)
    engine = ScriptedEngine(arguments, spec["rate"])
    ticks = asyncio.ensure_future(engine.ticks.run())
    print("PORT", listener.getsockname()[1], flush=True)  # connections wait in its queue
    await (await build_and_serve(engine, address, listener, arguments))
    ticks.cancel()


if __name__ == "__main__":
    uvloop.run(serve(json.loads(sys.argv[1])))
