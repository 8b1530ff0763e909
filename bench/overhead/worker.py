"""The overhead of a worker process: token events a second through all of it, with a model that costs nothing.

    python bench/overhead/worker.py [--streams 64] [--tokens 4000] [--stop] [--profile FILE]

One scripted worker process, as the gateway starts it, generates for all streams at once as fast as it can; this process
reads its link and decodes every frame, as the gateway does. Printed are the rate and the worker's CPU time per token.
The limit is the engine with the scripted model alone, measured here in process, without loop, text and link.
"""

import argparse
import asyncio
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from bench.harness.child_process import wait_for
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.folders import smoke_results
from cli.config.launch import worker_command
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
class Requests:
    """The requests that the worker gets."""

    streams: int
    tokens: int
    stops: tuple[str, ...]

    def submits(self) -> list[Submit]:
        limits = Limits(max_tokens=self.tokens, stop=self.stops)
        return [Submit(n, f"r{n}", TextInput(f"prompt {n}"), Sampling(), limits) for n in range(self.streams)]


class EventCounter:
    """Counts what the worker sends, from the first `Step` to the last `Finished`."""

    def __init__(self, load: Requests) -> None:
        self._load = load
        self._ended = 0
        self.tokens = 0
        self.steps = 0
        self.messages = 0
        self.began = self.took = 0.0
        self.gone = asyncio.Event()
        """The worker said `Bye`, or the link is lost."""

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


async def through_the_process(load: Requests, profile: str) -> EventCounter:
    """Start a worker, send it the requests, and count its events. Raises RuntimeError if it ends before they do."""
    spec = WorkerSpec(
        "w0", "scripted", "", backend="scripted", max_batch_size=load.streams, context=1 << 16, log_level="error"
    )
    with LocalEndpoint() as endpoint:
        counter = EventCounter(load)
        link = Link.bind(endpoint.address, counter.on_message, on_lost=lambda _: counter.gone.set())
        counter.attach(link)
        command = worker_command(spec)(endpoint.address, 1)
        if profile:
            script = command.index("-P") + 1
            command[script:script] = ["-m", "cProfile", "-o", profile]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220  before anything is measured
        await wait_for(counter.gone, process)
        await asyncio.to_thread(process.wait)
        link.close(0.0)
    if not counter.took:
        raise RuntimeError(f"the worker ended with status {process.returncode} before its requests did")
    return counter


def engine_alone(load: Requests) -> float:
    """CPU seconds of scheduler and scripted model for the same load."""
    engine = _engine(load)
    began = time.process_time()
    while not engine.idle:
        engine.step()
    return time.process_time() - began


def with_text_and_frames(load: Requests) -> float:
    """CPU seconds of the same, plus request table, detokenizer and encoding."""
    engine = _engine(load)
    processor = OutputProcessor(ByteTokenizer(), max_live=load.streams, clock=time.monotonic)
    for submit in load.submits():
        processor.admit(submit)
    began = time.process_time()
    while not engine.idle:
        for frame in processor.process(EngineOutput(engine.step(), (), (), engine.gauges())).frames:
            encode(frame)
    return time.process_time() - began


def _engine(load: Requests) -> BatchEngine:
    runner = ScriptedRunner(slots=load.streams, context=1 << 16)
    engine = BatchEngine(runner, max_queue=load.streams, step_tokens=512)
    for n in range(load.streams):
        engine.submit(EngineRequest(n, tuple(f"prompt {n}".encode()), Sampling(), load.tokens))
    return engine


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--streams", type=at_least(1), default=64, help="at once")
    parser.add_argument("--tokens", type=at_least(1), default=4000, help="per stream")
    parser.add_argument("--stop", action="store_true", help="give every stream four stop strings that never come")
    parser.add_argument("--profile", default="", metavar="FILE", help="profile the worker's event loop into FILE")
    smoke = {"streams": 4, "tokens": 50, "stop": True, "profile": str(smoke_results("worker") / "profile")}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    if args.profile:
        Path(args.profile).parent.mkdir(parents=True, exist_ok=True)
    stops = ("\n\n", "<|im_end|>", "User:", "zzzzzzzzzz") if args.stop else ()
    load = Requests(args.streams, args.tokens, stops)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    counter = asyncio.run(through_the_process(load, args.profile))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    tokens = counter.tokens
    engine_s, text_s = engine_alone(load), with_text_and_frames(load)
    print(f"{load.streams} streams x {load.tokens} tokens: {tokens} token events in {counter.steps} steps")
    messages = counter.messages / counter.took
    print(f"whole process     {tokens / counter.took:>12,.0f} tokens/s   {messages:,.0f} messages/s")
    print(f"  its CPU         {cpu / tokens * 1e6:>12.2f} us/token (start and stop included)")
    print(f"engine and model  {tokens / engine_s:>12,.0f} tokens/s   {engine_s / tokens * 1e6:.2f} us/token")
    print(
        f"  + text, frames  {tokens / text_s:>12,.0f} tokens/s   {(text_s - engine_s) / tokens * 1e6:.2f} us/token more"
    )
    if args.profile:
        pstats.Stats(args.profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
