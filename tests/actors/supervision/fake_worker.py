"""A worker process for the supervision tests: speaks the protocol, and misbehaves as its MODE says.

Run as `python fake_worker.py ENDPOINT INCARNATION MODE`.
"""

import asyncio
import os
import signal
import sys
import threading

from actors.process.parent_death import die_with_parent
from actors.transport.link import Link
from actors.transport.message import number_frame
from protocol.bounds import MAX_FRAME_BYTES, MAX_FRAMES_PER_MESSAGE, PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Stop, Submit, Welcome
from protocol.errors import ByeReason
from protocol.events import (
    Bye,
    Capabilities,
    Delta,
    Event,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Loading,
    Ready,
    Step,
    Usage,
)

BUSY = Gauges(slots_active=1, steps=1)


class FakeWorker:
    """One incarnation."""

    def __init__(self, endpoint: str, incarnation: int, mode: str) -> None:
        self.incarnation = incarnation
        self.mode = mode
        self.gauges = Gauges()
        self.left = asyncio.Event()
        self.link = Link.connect(endpoint, self.receive, on_lost=self.lost)

    def lost(self, reason: str) -> None:
        if self.mode != "oversized":
            self.left.set()

    def say(self, *events: Event) -> None:
        self.link.send_nowait([encode(event) for event in events])

    def hello(self) -> None:
        self.say(
            Hello(
                protocol=PROTOCOL_VERSION + 1 if self.mode == "wrong_version" else PROTOCOL_VERSION,
                worker="other" if self.mode == "wrong_name" else "w",
                incarnation=self.incarnation + 7 if self.mode == "wrong_incarnation" else self.incarnation,
                pid=os.getpid(),
                model="m",
                backend="fake",
                device="none",
                slots=4,
                context=128,
            )
        )

    def receive(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.obey(decode_command(frame))

    def obey(self, command: Command) -> None:
        match command:
            case Welcome(refusal=""):
                self.welcomed()
            case Welcome(refusal=refusal):
                print(
                    f'{{"event": "refused", "level": "warning", "refusal": "{refusal}"}}', file=sys.stderr, flush=True
                )
                self.left.set()
            case Submit(stream=stream):
                self.submitted(stream)
            case Cancel(stream=stream) if self.mode == "slow_drain":
                self.say(Finished(stream=stream, reason="cancelled", usage=Usage(prompt_tokens=1, completion_tokens=1)))
                self.leave()
            case Stop() if self.mode != "deaf":
                self.leave()
            case _:
                pass

    def welcomed(self) -> None:
        match self.mode:
            case "stuck_loading":
                self.say(Loading(phase="weights", done=1, total=2))
            case "load_fails":
                self.say(Bye(reason=ByeReason.LOAD_FAILED, text="no such weights"))
                self.left.set()
            case "load_refused":
                self.say(Bye(reason=ByeReason.LOAD_REFUSED, text="no such device"))
                self.left.set()
            case "silent":
                self.say(Ready(capabilities=Capabilities()))
            case "hangs_for_good":  # neither reads its stdin nor turns its loop: only the kernel can end it
                self.say(Ready(capabilities=Capabilities()))
                while True:
                    signal.pause()
            case _:
                self.say(Loading(phase="weights", done=2, total=2), Ready(capabilities=Capabilities()))
                asyncio.get_running_loop().call_later(0.05, self.beat)

    def submitted(self, stream: int) -> None:
        match self.mode:
            case "hangs_in_step":  # the event loop beats on, the engine does not
                self.gauges = BUSY
                self.say(Step(deltas=(), gauges=BUSY))
            case "garbage":
                self.link.send_nowait([encode(Step(deltas=())), b"\xc1 not a frame", encode(Step(deltas=()))])
            case "oversized":  # past the link's own checks
                self.link._transmit([number_frame(self.link.sent), bytes(MAX_FRAME_BYTES + 1)])
            case "too_many_frames":
                frames = [encode(Step(deltas=()))] * (MAX_FRAMES_PER_MESSAGE + 1)
                self.link._transmit([number_frame(self.link.sent), *frames])
                self.link.sent += 1  # the next message is no gap
            case "most_frames":
                self.say(*[Step(deltas=())] * MAX_FRAMES_PER_MESSAGE)
            case "closes_link":
                self.link.close()
            case "hello_twice":
                self.hello()
            case "last_words":
                for token in range(100):
                    self.say(Step(deltas=(Delta(stream=stream, tokens=(token,)),)))
                self.link.close()
                os._exit(3)
            case "slow_drain" | "silent":
                pass
            case "stopped_process":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                usage = Usage(prompt_tokens=1, completion_tokens=1)
                self.say(
                    Step(deltas=(Delta(stream=stream, tokens=(5,)),)),
                    Finished(stream=stream, reason="stop", usage=usage),
                )

    def beat(self) -> None:
        if not self.left.is_set() and not self.link.closed:
            self.say(Heartbeat(gauges=self.gauges))
            asyncio.get_running_loop().call_later(0.05, self.beat)

    def leave(self) -> None:
        self.say(Bye(reason=ByeReason.STOPPED, text=""))
        self.left.set()


def leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(9)


async def main(endpoint: str, incarnation: int, mode: str) -> None:
    if mode == "flood":
        for number in range(50_000):
            os.write(2, b"noise %d\n" % number)
        os.write(2, b"x" * 1_000_000)
    if mode == "logs":
        os.write(
            2, b'{"event": "from_worker", "level": "warning", "answer": 42, "worker": "liar"}\nplain \x1b[31mtext\n'
        )
    if mode in ("deaf", "silent_start"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "silent_start":
        await asyncio.Event().wait()
    worker = FakeWorker(endpoint, incarnation, mode)
    if mode == "no_hello_first":
        worker.say(Heartbeat(gauges=Gauges()))
    worker.hello()
    await worker.left.wait()
    if mode == "deaf":
        await asyncio.Event().wait()
    worker.link.close()


if __name__ == "__main__":
    if sys.argv[3] == "exits":
        sys.exit(4)
    if sys.argv[3] == "hangs_for_good":
        die_with_parent()
    else:
        threading.Thread(target=leave_with_parent, daemon=True).start()
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
