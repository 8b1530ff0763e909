"""Child process of `bench/gateway.py`: the HTTP front end of mlx_lm.server, without its engine.

    python bench/gateway_load/mlx_front.py '{"rate": 50.0}'

It is the server's own handler, a thread for each connection, over a generator that puts the text of a token into the
queue of every stream at once. Its queue of connections is longer than the five of the server itself.
"""

import json
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

from mlx_lm.generate import TextStateMachine
from mlx_lm.server import GenerationContext, Response, _run_http_server

STATE = "normal"


class ScriptedStream:
    """The tokens of one stream on their way to its thread."""

    def __init__(self, tokens: int) -> None:
        self.queue: SimpleQueue[Response] = SimpleQueue()
        self.left = tokens

    def step(self) -> None:
        """Make the next token."""
        self.left -= 1
        self.queue.put(_response(self.left))


class ScriptedGenerator:
    """Takes the place of the server's `ResponseGenerator`. Generates `x` for each stream, `rate` times a second, or as
    fast as the stream is read if that is 0."""

    cli_args = Namespace(
        allowed_origins=["*"], num_draft_tokens=3, max_tokens=512, temp=0.0, top_p=1.0, top_k=0, min_p=0.0
    )

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._streams: list[ScriptedStream] = []
        self._lock = threading.Lock()

    def generate(
        self, request: Any, args: Any, progress_callback: Callable[[int, int], None] | None = None
    ) -> tuple[GenerationContext, Iterator[Response]]:
        context = GenerationContext(
            has_tool_calling=False,
            has_thinking=False,
            tool_parser=lambda text, tools: {},
            text_sm=TextStateMachine(None),
            initial_state=STATE,
            prompt=[1],
        )
        return context, self._paced(args.max_tokens) if self._rate else map(_response, reversed(range(args.max_tokens)))

    def _paced(self, tokens: int) -> Iterator[Response]:
        stream = ScriptedStream(tokens)
        with self._lock:
            self._streams.append(stream)
        for _ in range(tokens):
            yield stream.queue.get()

    def run(self) -> None:
        """Make a token of each stream once a step."""
        due = time.monotonic()
        while self._rate:
            due = max(due + 1 / self._rate, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            with self._lock:
                for stream in self._streams:
                    stream.step()
                self._streams = [stream for stream in self._streams if stream.left]


def _response(left: int) -> Response:
    """A token after which so many are left."""
    return Response("x", left, 0.0, None if left else "length", ())


class MlxServer(ThreadingHTTPServer):
    """Prints its port once it listens."""

    request_queue_size = 4096
    daemon_threads = True

    def server_activate(self) -> None:
        super().server_activate()
        print("PORT", self.server_address[1], flush=True)


def main(text: str) -> None:
    """Serve until SIGTERM."""
    generator = ScriptedGenerator(json.loads(text)["rate"])
    threading.Thread(target=generator.run, daemon=True).start()
    _run_http_server("127.0.0.1", 0, generator, MlxServer)


if __name__ == "__main__":
    main(sys.argv[1])
