"""Child process of `bench/peers/rivals.py`: Baton's engine, driven like those of the peers.

python bench/peers/children/baton.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from actors.process.logs import configure_logging
from bench.harness.engine import Setup
from bench.peers.children.serve import Generation, serve
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.process.backends import load_runner


class Baton:
    """The engine of a worker, without its process and its server."""

    def __init__(self, settings: dict[str, Any]) -> None:
        configure_logging("bench", "warning")
        folders = {name: Path(settings["setup"][name]) for name in ("path", "cache")}
        setup = Setup(**(settings["setup"] | folders))
        runner = load_runner(setup.spec(), lambda phase, done, total: None)
        if settings["settle"]:
            runner.settle()
        self._engine = BatchEngine(runner, max_queue=0, step_tokens=1 << 20)
        self._streams = 0

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Generation:
        generation = Generation(tokens=[[] for _ in prompts])
        outputs: dict[int, list[int]] = {}
        for prompt, out in zip(prompts, generation.tokens, strict=True):
            self._streams += 1
            outputs[self._streams] = out
            self._engine.submit(EngineRequest(self._streams, tuple(prompt), max_tokens=tokens))
        while not self._engine.idle:
            result = self._engine.step()
            if result.failures:
                raise RuntimeError(result.failures[0].text)
            for token in result.tokens:
                outputs[token.stream].append(token.token)
            generation.add(len(result.tokens))
        return generation


if __name__ == "__main__":
    serve(Baton)
