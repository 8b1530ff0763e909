"""Loop overhead of a worker: token events per second through a whole worker process, with a model that costs nothing.

    python bench/worker.py [--streams 64] [--tokens 4000] [--stop] [--profile]

One scripted worker process, as the gateway starts it, generates for all streams at once as fast as it can; this process
reads its link and decodes every frame, as the gateway does. Reported are the rate and the worker's CPU time per token,
of which the scripted model's own share is measured here, in process, without loop, text and link.
"""

import asyncio
import pstats
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from bench.command_line import at_least, command_line
from protocol.codec import decode_event, encode
from protocol.commands import Stop, Submit, Welcome
from protocol.events import Bye, Event, Failed, Finished, Hello, Ready, Step
from protocol.request import Limits, Sampling, TextInput
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.process.output_processor import EngineOutput, OutputProcessor
from workers.process.spec import WorkerSpec
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import ByteTokenizer


@dataclass(frozen=True)
class Load:
    """What is asked of the worker."""

    streams: int
    tokens: int
    stops: tuple[str, ...]

    def submits(self) -> list[Submit]:
        limits = Limits(max_tokens=self.tokens, stop=self.stops)
        return [Submit(n, f"r{n}", TextInput(f"prompt {n}"), Sampling(), limits) for n in range(self.streams)]


class Reader:
    """Counts what the worker sends, from the first `Step` to the last `Finished`."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._ended = 0
        self.tokens = 0
        self.steps = 0
        self.messages = 0
        self.began = self.took = 0.0
        self.gone = asyncio.Event()

    def attach(self, link: Link) -> None:
        self._link = link

    def on_message(self, frames: list[bytes]) -> None:
        self.messages += 1
        for frame in frames:
            self._read(decode_event(frame))

    def _read(self, event: Event) -> None:
        match event:
            case Step(deltas=deltas):
                self.began = self.began or time.perf_counter()
                self.steps += 1
                for delta in deltas:
                    self.tokens += len(delta.tokens)
            case Finished():
                self._ended += 1
                if self._ended == self._load.streams:
                    self.took = time.perf_counter() - self.began
                    self._send(Stop())
            case Hello():
                self._send(Welcome(event.incarnation))
            case Ready():
                self._send(*self._load.submits())
            case Failed():
                raise RuntimeError(f"a request failed: {event}")
            case Bye():
                self.gone.set()

    def _send(self, *commands: Stop | Submit | Welcome) -> None:
        self._link.send_nowait([encode(command) for command in commands])


async def through_the_process(load: Load, profile: str) -> Reader:
    spec = WorkerSpec("w0", "scripted", "", backend="scripted", max_batch_size=load.streams, context=1 << 16)
    with LocalEndpoint() as endpoint:
        reader = Reader(load)
        link = Link.bind(endpoint.address, reader.on_message, on_lost=lambda _: reader.gone.set())
        reader.attach(link)
        arguments = ["--endpoint", endpoint.address, "--incarnation", "1", "--spec", msgspec.json.encode(spec).decode()]
        run = ["-m", "cProfile", "-o", profile, "-m", "workers"] if profile else ["-m", "workers"]
        process = subprocess.Popen(  # noqa: ASYNC220  before anything is measured
            [sys.executable, *run, *arguments], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        await reader.gone.wait()
        await asyncio.to_thread(process.wait)
        link.close(0.0)
    return reader


def engine_alone(load: Load) -> float:
    """CPU seconds of scheduler and scripted model for the same load."""
    engine = _engine(load)
    began = time.process_time()
    while not engine.idle:
        engine.step()
    return time.process_time() - began


def with_text_and_frames(load: Load) -> float:
    """The same, plus request table, detokenizer and encoding."""
    engine = _engine(load)
    processor = OutputProcessor(ByteTokenizer(), max_live=load.streams, clock=time.monotonic)
    for submit in load.submits():
        processor.admit(submit)
    began = time.process_time()
    while not engine.idle:
        for frame in processor.process(EngineOutput(engine.step(), (), (), engine.gauges())).frames:
            encode(frame)
    return time.process_time() - began


def _engine(load: Load) -> BatchEngine:
    runner = ScriptedRunner(slots=load.streams, context=1 << 16)
    engine = BatchEngine(runner, max_queue=load.streams, step_tokens=512)
    for n in range(load.streams):
        engine.submit(EngineRequest(n, tuple(f"prompt {n}".encode()), Sampling(), load.tokens))
    return engine


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=at_least(1), default=64, help="at once")
    parser.add_argument("--tokens", type=at_least(1), default=4000, help="per stream")
    parser.add_argument("--stop", action="store_true", help="give every stream four stop strings that never come")
    parser.add_argument("--profile", default="", metavar="FILE", help="profile the worker's loop into FILE")
    arguments = parser.parse_args()
    stops = ("\n\n", "<|im_end|>", "User:", "zzzzzzzzzz") if arguments.stop else ()
    load = Load(arguments.streams, arguments.tokens, stops)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    reader = asyncio.run(through_the_process(load, arguments.profile))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    tokens = reader.tokens
    engine_s, text_s = engine_alone(load), with_text_and_frames(load)
    print(f"{load.streams} streams x {load.tokens} tokens: {tokens} token events in {reader.steps} steps")
    print(
        f"whole process     {tokens / reader.took:>12,.0f} tokens/s   {reader.messages / reader.took:,.0f} messages/s"
    )
    print(f"  its CPU         {cpu / tokens * 1e6:>12.2f} us/token (start and stop included)")
    print(f"engine and model  {tokens / engine_s:>12,.0f} tokens/s   {engine_s / tokens * 1e6:.2f} us/token")
    print(
        f"  + text, frames  {tokens / text_s:>12,.0f} tokens/s   {(text_s - engine_s) / tokens * 1e6:.2f} us/token more"
    )
    if arguments.profile:
        pstats.Stats(arguments.profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
