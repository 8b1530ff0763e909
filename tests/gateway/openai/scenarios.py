"""Whole responses of the OpenAI API, byte for byte: a golden file for each of these scenarios.

`python -m tests.gateway.openai.scenarios` writes the files anew: do so only together with a change of the API.
"""

from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace

from actors.supervision.worker import WorkerState
from protocol.errors import ErrorCode
from protocol.events import Delta, Logprobs, PromptLogprobs, PromptToken, Step, TokenLogprob, Usage
from tests.gateway.harness.asgi import Connection, UnfinishedRequest
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.transcripts import Scenario, Site, play, transcript

GOLDEN = Path(__file__).parent / "golden"
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "hi", "max_tokens": 8}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
KINDS = {"completion": ("/v1/completions", COMPLETION), "chat": ("/v1/chat/completions", CHAT)}
STREAM: dict[str, Any] = {"stream": True}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
RESUMABLE: dict[str, Any] = {"stream": True, "stream_options": {"resume_s": 60}}
TEXTS = ("a", "", '\u00e9 "q"\n', "\u2028<\U0001f600>")
REPORTS = (
    Logprobs(TokenLogprob(7, -0.5, b"a\xc3"), (TokenLogprob(7, -0.5, b"a\xc3"), TokenLogprob(9, -1.5, b" b"))),
    Logprobs(TokenLogprob(8, -2.0, b"\xa9"), (TokenLogprob(9, -0.25, b" b"),)),
)
PROMPT = (
    PromptToken(4, b"<s>"),
    PromptToken(7, b"h", -0.5, REPORTS[0].top),
    PromptToken(8, b"\xc3", -2.5, REPORTS[0].top),
    PromptToken(9, b"\xa9", -1.5, REPORTS[0].top),
)
"""The tokens of "h\u00e9", after one that tokenizers put before a text."""

RETRIED = (ErrorCode.STEP, ErrorCode.NOT_FINITE, ErrorCode.DRAINING, ErrorCode.LOST)
"""Failures of a worker after which another one continues."""


def posted(site: Site, kind: str, fields: dict[str, Any]) -> Connection:
    path, body = KINDS[kind]
    return site.post(path, body | fields)


def answered(kind: str, fields: dict[str, Any]) -> Scenario:
    async def scenario(site: Site) -> bytes:
        connection = posted(site, kind, fields)
        (stream,) = await site.placed()
        for token, text in enumerate(TEXTS, 5):
            await site.token(stream, text, token)
        site.worker.finish(stream, "!", reason="length", usage=Usage(3, 4, cached_tokens=2))
        return await transcript(connection)

    return scenario


def reported(kind: str, fields: dict[str, Any]) -> Scenario:
    """Two tokens with their log-probabilities, which share a character."""

    async def scenario(site: Site) -> bytes:
        asked = {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2}
        connection = posted(site, kind, asked | {"return_token_ids": True} | fields)
        (stream,) = await site.placed()
        for text, report in zip(("a", "\u00e9"), REPORTS, strict=True):
            site.worker.report(stream, text, report)
            await anyio.sleep(0.001)
        site.worker.finish(stream, usage=Usage(4, 2))
        return await transcript(connection)

    return scenario


def choices(kind: str, fields: dict[str, Any]) -> Scenario:
    """Two choices that take turns, of which the second ends first."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, kind, {"n": 2, "seed": 1} | fields)
        first, second = await site.placed(2)
        for text in ("x", "y"):
            site.worker.say(Step((Delta(first, (1,), f"{text}0"), Delta(second, (1,), f"{text}1"))))
            await anyio.sleep(0.001)
        site.worker.finish(second, "end", usage=Usage(3, 2))
        site.worker.finish(first, reason="length", usage=Usage(3, 2))
        return await transcript(connection)

    return scenario


def stopped(kind: str, fields: dict[str, Any], stop: str | int) -> Scenario:
    """The answer ends at a stop of the request."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, kind, {"stop": "\u00e9\n", "stop_token_ids": [7]} | fields)
        (stream,) = await site.placed()
        await site.token(stream, "a", 5)
        site.worker.finish(stream, usage=Usage(3, 1), stop=stop)
        return await transcript(connection)

    return scenario


def echoed(fields: dict[str, Any]) -> Scenario:
    """A prompt of three tokens in two parts, before an answer of one."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, "completion", {"prompt": "h\u00e9", "echo": True, "logprobs": 2} | fields)
        (stream,) = await site.placed()
        site.worker.say(PromptLogprobs(stream, 0, PROMPT[:2]))
        await anyio.sleep(0.001)
        site.worker.say(PromptLogprobs(stream, 2, PROMPT[2:]))
        await anyio.sleep(0.001)
        site.worker.report(stream, " b", REPORTS[1])
        await anyio.sleep(0.001)
        site.worker.finish(stream, usage=Usage(4, 1), reason="length")
        return await transcript(connection)

    return scenario


def prompt_alone(kind: str, fields: dict[str, Any]) -> Scenario:
    """The log-probabilities of the prompt."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, kind, fields)
        (stream,) = await site.placed()
        site.worker.say(PromptLogprobs(stream, 0, PROMPT))
        site.worker.finish(stream, "x" if kind == "chat" else "", usage=Usage(4, 0), reason="length")
        return await transcript(connection)

    return scenario


def scored(completion: str) -> Scenario:
    """A completion after a prompt, of which a worker reports three tokens."""

    async def scenario(site: Site) -> bytes:
        connection = site.post("/v1/score", {"model": "tiny", "prompt": "h", "completion": completion})
        (stream,) = await site.placed()
        site.worker.say(PromptLogprobs(stream, 0, PROMPT))
        site.worker.finish(stream, usage=Usage(4, 0), reason="length")
        return await transcript(connection)

    return scenario


def best(site_fields: dict[str, Any]) -> Scenario:
    """Three candidates, of which the last one is the best and the first one the worst."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, "completion", {"best_of": 3, "n": 2, "seed": 1} | site_fields)
        for stream, text, logprob in zip(await site.placed(3), "abc", (-3.0, -2.0, -1.0), strict=True):
            site.worker.report(stream, text, Logprobs(TokenLogprob(5, logprob, text.encode())))
            site.worker.finish(stream, usage=Usage(3, 1), reason="length")
        return await transcript(connection)

    return scenario


def failed(kind: str, fields: dict[str, Any], code: ErrorCode, *, begun: bool) -> Scenario:
    async def scenario(site: Site) -> bytes:
        connection = posted(site, kind, fields)
        (stream,) = await site.placed()
        if begun:
            await site.token(stream, "Hel", 1)
        site.worker.fail(stream, code, "because of \u00e9", "prompt")
        return await transcript(connection)

    return scenario


def continued(fields: dict[str, Any]) -> Scenario:
    """A worker with another backend finishes what the first one began."""

    async def scenario(site: Site) -> bytes:
        connection = posted(site, "chat", fields)
        (stream,) = await site.placed()
        await site.token(stream, "Hel", 1)
        other = FakeWorker("b").join(site.router)
        assert other.status.hello is not None
        other.change(hello=replace(other.status.hello, backend="other"))
        site.worker.die()
        (again,) = await other.wait_submits(1)
        other.finish(again.stream, "lo", usage=Usage(3, 2))
        return await transcript(connection)

    return scenario


async def waiting(site: Site) -> bytes:
    """There is no worker for eleven seconds."""
    connection = posted(site, "completion", STREAM)
    (stream,) = await site.placed()
    await site.token(stream, "Hel", 1)
    site.worker.die()
    await anyio.sleep(11)
    site.worker.come_back()
    _, again = await site.placed(2)
    site.worker.finish(again, "lo", usage=Usage(3, 2))
    return await transcript(connection)


async def resumed(site: Site) -> bytes:
    """Return what the second connection gets of a stream whose first one ended after one event."""
    first = posted(site, "completion", RESUMABLE)
    (stream,) = await site.placed()
    await site.token(stream, "one", 1)
    await first.leave()
    await site.token(stream, " two", 2)
    stream_id = first.headers["x-stream-id"]
    second = site.clients.open("GET", f"/v1/streams/{stream_id}", x_request_id="golden", last_event_id=f"{stream_id}-1")
    await second.until(1)
    site.worker.finish(stream, " three", usage=Usage(3, 3))
    return await transcript(second)


async def taken(site: Site) -> bytes:
    """Return what a connection gets whose stream another one resumes."""
    first = posted(site, "completion", RESUMABLE)
    (stream,) = await site.placed()
    await site.token(stream, "one", 1)
    second = site.clients.open("GET", f"/v1/streams/{first.headers['x-stream-id']}")
    await second.until(1)
    site.worker.finish(stream, usage=Usage(3, 1))
    return await transcript(first)


async def cancelled(site: Site) -> bytes:
    """Return what a connection gets whose stream is cancelled by another one."""
    first = posted(site, "chat", RESUMABLE)
    (stream,) = await site.placed()
    await site.token(stream, "one", 1)
    deleted = await site.clients.ask("DELETE", f"/v1/streams/{first.headers['x-stream-id']}")
    assert (deleted.status, deleted.body) == (204, b"")
    return await transcript(first)


async def gone(site: Site) -> bytes:
    """The buffer does not reach back to the event after which a client asks."""
    first = posted(site, "completion", RESUMABLE)
    (stream,) = await site.placed()
    for number in range(4):
        await site.token(stream, "0123456789" * 100, number)
    await first.leave()
    path = f"/v1/streams/{first.headers['x-stream-id']}"
    return await transcript(site.clients.open("GET", path, x_request_id="golden", query="starting_after=1"))


async def late_body(site: Site) -> bytes:
    return await transcript(
        site.clients.start(UnfinishedRequest(site.clients.app, "POST", "/v1/completions", x_request_id="golden"))
    )


async def draining(site: Site) -> bytes:
    site.router.admission.drain_nowait()
    return await transcript(posted(site, "chat", STREAM))


async def overloaded(site: Site) -> bytes:
    first = posted(site, "completion", {"n": 2})
    await site.placed(2)
    answer = await transcript(posted(site, "completion", {}))
    await first.leave()
    return answer


async def unavailable(site: Site) -> bytes:
    site.worker.change(state=WorkerState.GIVEN_UP)
    return await transcript(posted(site, "completion", {}))


def refused(method: str, path: str, body: Any = None, **options: Any) -> Scenario:
    async def scenario(site: Site) -> bytes:
        return await transcript(site.clients.open(method, path, body, x_request_id="golden", **options))

    return scenario


SETTINGS: dict[str, dict[str, Any]] = {
    "refused_no_key": {"api_key": "secret"},
    "refused_no_admin_key": {"admin_key": "secret"},
    "refused_admin_from_elsewhere": {"host": "0.0.0.0"},
    "refused_body_too_large": {"max_body_bytes": 4096},
    "refused_headers_too_large": {"max_header_bytes": 1024},
    "refused_overloaded": {"max_streams_per_worker": 2, "max_waiting_streams": 0, "max_choices": 2, "retry_after_s": 7},
    "refused_events_gone": {"resume_buffer_bytes": 2000},
}
"""Settings of the scenarios that need other than the defaults."""

SCENARIOS: dict[str, Scenario] = {
    **{f"{kind}_whole": answered(kind, {}) for kind in KINDS},
    **{f"{kind}_whole_tokens": answered(kind, {"return_token_ids": True}) for kind in KINDS},
    **{f"{kind}_whole_logprobs": reported(kind, {}) for kind in KINDS},
    **{f"{kind}_whole_choices": choices(kind, {}) for kind in KINDS},
    **{f"{kind}_stream": answered(kind, STREAM) for kind in KINDS},
    **{f"{kind}_stream_usage": answered(kind, USAGE) for kind in KINDS},
    **{f"{kind}_stream_tokens": answered(kind, STREAM | {"return_token_ids": True}) for kind in KINDS},
    **{f"{kind}_stream_logprobs": reported(kind, USAGE) for kind in KINDS},
    **{f"{kind}_stream_choices": choices(kind, USAGE) for kind in KINDS},
    **{f"{kind}_whole_stopped": stopped(kind, {}, "\u00e9\n") for kind in KINDS},
    **{f"{kind}_stream_stopped": stopped(kind, STREAM, 7) for kind in KINDS},
    "completion_whole_echo": echoed({}),
    "completion_whole_echo_tokens": echoed({"prompt": [4, 7, 8, 9], "return_token_ids": True}),
    "completion_stream_echo": echoed(USAGE),
    "completion_stream_echo_tokens": echoed(STREAM | {"prompt": [4, 7, 8, 9], "logprobs": None}),
    "completion_whole_prompt": prompt_alone("completion", {"prompt_logprobs": 1, "max_tokens": 0}),
    "completion_whole_scored": prompt_alone("completion", {"echo": True, "logprobs": 1, "max_tokens": 0}),
    "chat_whole_prompt": prompt_alone("chat", {"prompt_logprobs": 0}),
    "completion_whole_best": best({}),
    "score": scored("\u00e9"),
    "score_unknown": scored("\u00e8"),
    "refused_score_of_two_texts": refused("POST", "/v1/score", {"model": "tiny", "text_1": "a", "text_2": "b"}),
    **{f"failed_{code}": failed("completion", STREAM, code, begun=False) for code in ErrorCode if code not in RETRIED},
    "failed_in_stream": failed("chat", USAGE, ErrorCode.DEADLINE, begun=True),
    "failed_in_whole": failed("completion", {}, ErrorCode.QUARANTINED, begun=True),
    "continued_whole": continued({}),
    "continued_stream": continued(USAGE),
    "waiting": waiting,
    "resumed": resumed,
    "resumed_taken": taken,
    "resumed_cancelled": cancelled,
    "refused_events_gone": gone,
    "refused_draining": draining,
    "refused_overloaded": overloaded,
    "refused_unavailable": unavailable,
    "refused_content_type": refused("POST", "/v1/completions", COMPLETION, content_type="text/plain"),
    "refused_body_too_large": refused("POST", "/v1/chat/completions", {"model": "x" * 5000}),
    "refused_body_timeout": late_body,
    "refused_headers_too_large": refused("GET", "/v1/models", x_long="x" * 2000),
    "refused_no_key": refused("POST", "/v1/chat/completions", CHAT),
    "refused_no_admin_key": refused("POST", "/admin/restart", {}),
    "refused_admin_from_elsewhere": refused("POST", "/admin/restart", {}),
    "refused_path": refused("GET", "/v1/nothing"),
    "refused_near_path": refused("POST", "/chat/completions/", CHAT),
    "refused_method": refused("GET", "/v1/chat/completions"),
    "refused_model": refused("POST", "/v1/completions", COMPLETION | {"model": "huge"}),
    "refused_field": refused("POST", "/v1/chat/completions", CHAT | {"temperature": -1}),
    "refused_field_of_other_path": refused("POST", "/v1/completions", COMPLETION | {"messages": []}),
    "refused_missing_field": refused("POST", "/v1/completions", {"model": "tiny"}),
    "refused_enum": refused("POST", "/v1/chat/completions", CHAT | {"messages": [{"role": "x", "content": ""}]}),
    "refused_option": refused("POST", "/v1/chat/completions", CHAT | {"web_search_options": {}}),
    "refused_json": refused("POST", "/v1/completions"),
    "refused_stream": refused("GET", "/v1/streams/cmpl-00"),
    "refused_position": refused("GET", "/v1/streams/cmpl-00", query="starting_after=x"),
    "refused_event_id": refused("POST", "/v1/completions", COMPLETION, last_event_id="x"),
    "models": refused("GET", "/v1/models"),
    "model": refused("GET", "/v1/models/tiny"),
    "model_unknown": refused("GET", "/v1/models/huge"),
}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, scenario in SCENARIOS.items():
        (GOLDEN / f"{name}.http").write_bytes(play(scenario, **SETTINGS.get(name, {})))
