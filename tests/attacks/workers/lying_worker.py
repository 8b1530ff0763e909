"""A worker that speaks the protocol well and lies: a process for the tests.

Run as `python lying_worker.py LIE ENDPOINT INCARNATION`, and with the gateway's public key and the file of its own key
to join over TCP. The lie is a name in `LIES`, its answer to a `Submit`, or in `HELLOS`.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.process.parent_death import die_with_parent
from actors.transport.keys import read_key, to_z85
from actors.transport.link import CurveKeys, Link
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Submit, Welcome
from protocol.errors import ErrorCode
from protocol.events import (
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    Ready,
    Step,
    TokenLogprob,
    Usage,
)

SLOTS = 4
MIB = 1 << 20
A = 65
"""A token of the scripted workers, the letter A."""


def token(piece: bytes = b"A") -> TokenLogprob:
    return TokenLogprob(A, -1.0, piece)


def step(*deltas: Delta, gauges: Gauges | None = None) -> Step:
    return Step(deltas, gauges or Gauges(slots_active=1, steps=1))


def whole(submit: Submit) -> Step:
    """All tokens that were asked for."""
    count = (submit.limits.max_tokens or 1) - len(submit.resume)
    logprobs = () if submit.sampling.logprobs is None else (Logprobs(token()),) * count
    return step(Delta(submit.stream, (A,) * count, "A" * count, logprobs))


def usage(submit: Submit, **fields: int) -> Usage:
    return Usage(**{"prompt_tokens": 2, "completion_tokens": submit.limits.max_tokens or 1} | fields)


def endless_text(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (), "x" * (3 * MIB)))]


def long_text(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,), "x" * (3 * MIB)))]


def long_last_text(submit: Submit) -> list[Event]:
    return [whole(submit), Finished(submit.stream, "length", usage(submit), (), "x" * (3 * MIB))]


def empty_deltas(submit: Submit) -> list[Event]:
    return [step(*[Delta(submit.stream, ())] * 1000)]


def too_many_tokens(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,) * 1000, "A"))]


def text_after_the_end(submit: Submit) -> list[Event]:
    stream = submit.stream
    late = step(Delta(stream, (A,), "too late"))
    return [whole(submit), Finished(stream, "length", usage(submit)), late]


def foreign_stream(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream + 1000, (A,), "A"))]


def logprobs_unasked(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,), "A", (Logprobs(token()),)))]


def missing_logprobs(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,), "A"))]


def too_many_likely(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,), "A", (Logprobs(token(), (token(),) * 20),)))]


def logprobs_of_another(submit: Submit) -> list[Event]:
    return [step(Delta(submit.stream, (A,), "A", (Logprobs(TokenLogprob(A + 1, -1.0, b"B")),)))]


def cancelled_unasked(submit: Submit) -> list[Event]:
    return [Finished(submit.stream, "cancelled", Usage(0, 0))]


def too_short(submit: Submit) -> list[Event]:
    stream = submit.stream
    return [step(Delta(stream, (A,), "A")), Finished(stream, "length", Usage(2, len(submit.resume) + 1))]


def stopped_by_nothing(submit: Submit) -> list[Event]:
    stream = submit.stream
    return [step(Delta(stream, (A,), "A")), Finished(stream, "stop", Usage(2, len(submit.resume) + 1))]


def invented_completion(submit: Submit) -> list[Event]:
    return [whole(submit), Finished(submit.stream, "length", usage(submit, completion_tokens=10**9))]


def invented_prompt(submit: Submit) -> list[Event]:
    return [whole(submit), Finished(submit.stream, "length", usage(submit, prompt_tokens=10**9))]


def invented_cache(submit: Submit) -> list[Event]:
    return [whole(submit), Finished(submit.stream, "length", usage(submit, cached_tokens=10**9))]


def quarantines(submit: Submit) -> list[Event]:
    return [Failed(submit.stream, ErrorCode.QUARANTINED, "it kills workers")]


def more_slots_than_it_has(submit: Submit) -> list[Event]:
    return [step(gauges=Gauges(slots_active=SLOTS + 1))]


def part(submit: Submit, start: int, count: int = 1) -> PromptLogprobs:
    """Some tokens of a prompt."""
    tokens = [PromptToken(A, b"A", None if at == 0 else -1.0) for at in range(start, start + count)]
    return PromptLogprobs(submit.stream, start, tuple(tokens))


def prompt_unasked(submit: Submit) -> list[Event]:
    return [part(submit, 0, 2)]


def prompt_with_a_gap(submit: Submit) -> list[Event]:
    return [part(submit, 1)]


def endless_prompt(submit: Submit) -> list[Event]:
    return [part(submit, start, 256) for start in range(0, 8192, 256)]


def missing_prompt(submit: Submit) -> list[Event]:
    return whole_answer(submit)


def prompt_within_the_answer(submit: Submit) -> list[Event]:
    return [part(submit, 0), step(Delta(submit.stream, (A,), "A")), part(submit, 1)]


def invented_stop(submit: Submit) -> list[Event]:
    return [whole(submit), Finished(submit.stream, "stop", usage(submit), stop="A")]


def second_ready(submit: Submit) -> list[Event]:
    return [Ready(Capabilities())]


def whole_answer(submit: Submit) -> list[Event]:
    """The truth."""
    return [whole(submit), Finished(submit.stream, "length", usage(submit))]


LIES: dict[str, Callable[[Submit], list[Event]]] = {
    each.__name__: each
    for each in (
        endless_text,
        long_text,
        long_last_text,
        empty_deltas,
        too_many_tokens,
        text_after_the_end,
        foreign_stream,
        logprobs_unasked,
        missing_logprobs,
        too_many_likely,
        logprobs_of_another,
        cancelled_unasked,
        too_short,
        stopped_by_nothing,
        invented_completion,
        invented_prompt,
        invented_cache,
        quarantines,
        more_slots_than_it_has,
        prompt_unasked,
        prompt_with_a_gap,
        endless_prompt,
        missing_prompt,
        prompt_within_the_answer,
        invented_stop,
        second_ready,
    )
}


HELLOS: dict[str, dict[str, Any]] = {
    "free_backend": {"backend": "x" * 128},
    "control_characters": {"device": "cpu\x1b[31m"},
    "no_slots": {"slots": 0},
    "endless_context": {"context": 1 << 62},
}
"""Fields of its `Hello`."""
LIAR: dict[str, Any] = {
    "protocol": PROTOCOL_VERSION,
    "worker": "liar",
    "pid": os.getpid(),
    "model": "tiny",
    "backend": "scripted",
    "device": "none",
    "slots": SLOTS,
    "context": 4096,
    "config_digest": "scripted",
    "model_digest": "scripted",
}


class LyingWorker:
    """One incarnation."""

    def __init__(self, lie: str, endpoint: str, incarnation: int, keys: CurveKeys | None) -> None:
        self.lie = lie
        self.left = asyncio.Event()
        self.link = Link.connect(endpoint, self.receive, on_lost=lambda reason: self.left.set(), keys=keys)
        self.incarnation = incarnation

    def say(self, *events: Event) -> None:
        if not self.link.closed:
            self.link.send_nowait([encode(event) for event in events])

    async def hello(self) -> None:
        hello = Hello(**LIAR | {"incarnation": self.incarnation} | HELLOS.get(self.lie, {}))
        await self.link.send([encode(hello)])

    def receive(self, frames: list[bytes]) -> None:
        for frame in frames:
            match decode_command(frame):
                case Welcome(refusal=""):
                    self.say(Ready(Capabilities(chat=True, logprobs=True)))
                    self.send_heartbeats()
                case Welcome():
                    self.left.set()
                case Submit() as submit:
                    self.say(*LIES.get(self.lie, whole_answer)(submit))
                case Cancel(stream=stream):
                    self.say(Finished(stream, "cancelled", Usage(0, 0)))

    def send_heartbeats(self) -> None:
        self.say(Heartbeat(Gauges(steps=1)))
        asyncio.get_running_loop().call_later(0.2, self.send_heartbeats)


async def main(lie: str, endpoint: str, incarnation: str, server: str = "", file: str = "") -> None:
    keys = None
    if server:
        own = read_key(Path(file))
        keys = CurveKeys(own.public, own.secret, server=to_z85(server))
    worker = LyingWorker(lie, endpoint, int(incarnation), keys)
    await worker.hello()
    await worker.left.wait()
    worker.link.close()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main(*sys.argv[1:]))
