"""Another gateway continues a stream after any of its events: in each dialect, however output came in each of them."""

import random
from collections.abc import Sequence
from typing import Any

import anyio.lowlevel
import pytest

from protocol.events import (
    Delta,
    Finished,
    Logprobs,
    ReasoningSegment,
    Segment,
    Step,
    TextSegment,
    TokenLogprob,
    ToolCallSegment,
    Usage,
)
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.moving.meaning import data_of, id_of, meaning, position_of, reports
from tests.gateway.streaming.moving.two_gateways import Gateway, Shared, gateway

pytestmark = pytest.mark.anyio

OPTIONS = {"stream": True, "stream_options": {"resume_s": 60, "include_usage": True}}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50} | OPTIONS
COMPLETION = {"model": "tiny", "prompt": "hi", "max_tokens": 50} | OPTIONS
MESSAGES = {"model": "tiny", "messages": CHAT["messages"], "max_tokens": 50, "stream": True, "resume_s": 60}
RESPONSES = {"model": "tiny", "input": "hi", "stream": True, "stream_options": {"resume_s": 60}}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
TEXT: Sequence[Segment | None] = [TextSegment(each) for each in ("Héllo,", "wörld", "☃.", "Good")]
PARSED: Sequence[Segment | None] = [
    ReasoningSegment("The us"),
    None,
    ReasoningSegment("er ☃"),
    TextSegment("I w"),
    TextSegment("ill look."),
    None,
    ToolCallSegment(0, "look_up"),
    ToolCallSegment(0, arguments='{"na'),
    ToolCallSegment(0, arguments='me":"é"}'),
    None,
    ToolCallSegment(1, "add", '{"a":'),
    ToolCallSegment(1, arguments="1}"),
]
CASES: dict[str, tuple[str, dict[str, Any], Sequence[Segment | None]]] = {
    "chat": ("/v1/chat/completions", CHAT, TEXT),
    "chat-calls": ("/v1/chat/completions", CHAT, PARSED),
    "chat-hidden": ("/v1/chat/completions", CHAT | {"include_reasoning": False}, PARSED),
    "chat-ids": ("/v1/chat/completions", CHAT | {"return_token_ids": True, "logprobs": True}, PARSED),
    "chat-choices": ("/v1/chat/completions", CHAT | {"n": 3, "return_token_ids": True}, PARSED),
    "completion": ("/v1/completions", COMPLETION | {"n": 2, "logprobs": 1}, TEXT),
    "messages": ("/v1/messages", MESSAGES, PARSED),
    "responses": ("/v1/responses", RESPONSES, PARSED),
    "responses-logprobs": ("/v1/responses", RESPONSES | LOGPROBS, TEXT),
    "nothing": ("/v1/chat/completions", CHAT, ()),
    "nothing-responses": ("/v1/responses", RESPONSES, ()),
}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Script:
    """The output of a model: one segment or none for each token, the same for each choice."""

    def __init__(self, segments: Sequence[Segment | None], *, logprobs: bool) -> None:
        self._segments = segments
        self._logprobs = logprobs

    async def play(self, worker: FakeWorker, streams: Sequence[int], seed: int) -> None:
        """Deliver it in steps of random sizes, some of which the client gets as one."""
        chance = random.Random(seed)
        places = dict.fromkeys(range(len(streams)), 0)
        while places:
            index = chance.choice(list(places))
            begin = places[index]
            end = places[index] = begin + chance.randint(1, 3)
            worker.say(Step((self._delta(streams[index], index, begin, end),), worker.status.gauges))
            if end >= len(self._segments):
                del places[index]
                count = len(self._segments)
                if chance.random() < 0.5:
                    await anyio.lowlevel.checkpoint()
                worker.say(Finished(streams[index], "length" if index else "stop", Usage(3, count)))
            if chance.random() < 0.5:
                for _ in range(9):
                    await anyio.lowlevel.checkpoint()

    def _delta(self, stream: int, index: int, begin: int, end: int) -> Delta:
        given = [each for each in self._segments[begin:end] if each is not None]
        tokens = tuple(range(begin, min(end, len(self._segments))))
        logprobs = tuple(Logprobs(TokenLogprob(each, -0.5, b"ab"), ()) for each in tokens) if self._logprobs else ()
        if all(isinstance(each, TextSegment) for each in given):
            text = "".join(each.text for each in given if isinstance(each, TextSegment))
            return Delta(stream, tokens, text, logprobs)
        return Delta(stream, tokens, "", logprobs, tuple(given))


async def began(served: Gateway, connection: Connection, count: int, known: int) -> list[int]:
    submits = await served.worker.wait_submits(known + count)
    return [each.stream for each in submits[known:]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
async def test_the_rest_is_what_the_first_gateway_would_have_sent(case: str, seed: int) -> None:
    path, body, segments = CASES[case]
    count = body.get("n", 1)
    script = Script(segments, logprobs="logprobs" in body or "top_logprobs" in body)
    shared = Shared()
    async with gateway("one", shared) as one, gateway("two", shared) as two:
        first = one.open("POST", path, body)
        streams = await began(one, first, count, 0)
        await script.play(one.worker, streams, seed)
        await first.ended.wait()
        one.die()
        whole = first.events
        stream_id = first.headers["x-stream-id"]
        assert len({id_of(event) for event in whole}) == len(whole)
        first_seeds = [each.sampling.seed for each in one.worker.submits]
        for number in range(len(whole) + 1):
            last = {"last_event_id": id_of(whole[number - 1])} if number else {}
            again = two.open("GET", f"/v1/streams/{stream_id}", **last)
            if number < len(whole):
                known = number * count
                streams = await began(two, again, count, known)
                assert [each.sampling.seed for each in two.worker.submits[known:]] == first_seeds
                await script.play(two.worker, streams, 100 * seed + number)
            await again.ended.wait()
            assert again.status == (200 if number < len(whole) else 204)
            rest = [event for event in again.events if event != b'event: ping\ndata: {"type":"ping"}']
            together = whole[:number] + rest
            assert meaning(together) == meaning(whole), number
            assert reports(together) == reports(whole), number
            numbers = [position_of(event).number for event in rest]
            assert numbers == list(range(number + 1, number + 1 + len(numbers)))
            if path == "/v1/responses":
                assert [data_of(event)["sequence_number"] for event in together] == list(range(len(together)))
            two.records.release(stream_id)  # it would be kept
            two.streams.close()
