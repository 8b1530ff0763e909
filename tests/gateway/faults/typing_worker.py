"""A worker that reasons and then answers: `python -m tests.gateway.faults.typing_worker`, as `-m workers`."""

import argparse
import functools

import anyio

from tests.gateway.harness.typed_answer import TypingRunner
from workers.__main__ import decode_spec
from workers.engine.engine import BatchEngine
from workers.load_options import Progress
from workers.output_formats.formats.choice import choose_formats
from workers.process.loading import Loaded, load
from workers.process.service import WorkerService
from workers.process.spec import WorkerSpec
from workers.text.byte_tokenizer import ByteTokenizer

QUESTION = [{"role": "user", "content": "How long?"}]
REASONING = "Grüezi. " * 20
TEXT = "As long as it takes."


def _load(spec: WorkerSpec, progress: Progress) -> Loaded:
    loaded = load(spec, progress)
    start = len(ByteTokenizer().chat.render(QUESTION).encode())
    answer = f"<think>{REASONING}</think>\n\n{TEXT}"
    runner = TypingRunner(answer, start, rate=spec.scripted.tokens_per_second)
    return Loaded(
        BatchEngine(runner, max_queue=64, step_tokens=64),
        ByteTokenizer(),
        loaded.context,
        formats=choose_formats("think"),
    )


def main() -> int:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    for name, kind in (("endpoint", str), ("incarnation", int), ("spec", decode_spec)):
        parser.add_argument(f"--{name}", required=True, type=kind)
    given = parser.parse_args()
    service = WorkerService(given.spec, given.endpoint, given.incarnation, load=_load)
    return anyio.run(functools.partial(service.run)).exit_code


if __name__ == "__main__":
    raise SystemExit(main())
