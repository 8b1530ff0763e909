"""Answers as server-sent events: what never changes is rendered once a call, and only text is encoded a token."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.errors import RequestError
from gateway.openai.errors import DONE, error_object
from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from gateway.routing.sequence import Piece
from gateway.streaming.replay_buffer import EVENT_END

WAITING = b": waiting\n\n"
"""A comment, which clients skip: there is no worker at the moment, and the request is not forgotten."""
_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Writes the chunks of one call, in OpenAI's format for completions or for chats.

    What a sequence got since its last chunk goes into one chunk, however many tokens that is. Every event has an id,
    made of the answer's and the event's number (`chatcmpl-0123456789abcdef01234567-17`): a client can go on after it.
    """

    def __init__(
        self,
        *,
        chat: bool,
        answer_id: str,
        created: int,
        model: str,
        fingerprint: str | None,
        include_usage: bool,
        return_token_ids: bool,
        logprobs: bool = False,
    ) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": answer_id, "object": kind, "created": created, "model": model, "system_fingerprint": fingerprint}
        self._chat = chat
        self._id = f"id: {answer_id}-".encode()
        self._number = 0
        self._token_ids = return_token_ids
        self._logprobs = logprobs
        self._offsets: dict[int, CompletionLogprobs] = {}
        self._head = b"\ndata: " + _encode(head)[:-1]
        # With `include_usage` every chunk but the last says that it has none.
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._before: dict[int, bytes] = {}
        self._between = b'},"logprobs":null,"finish_reason":' if chat else b',"logprobs":null,"finish_reason":'
        self._plain = self._between + b"null}]" + self._tail
        self._by_token = return_token_ids or logprobs

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """One chunk a piece; before a chat choice's first, the chunk with its role."""
        out: list[bytes] = []
        for piece in pieces:
            before = self._before.get(piece.index)
            if before is None:
                before = self._open(piece.index, out)
            self._number += 1
            if self._chat and not piece.text:
                out.append(b"%s%d%s" % (self._id, self._number, before[: -len(b'"content":')]))
            else:
                out.append(b"%s%d%s%s" % (self._id, self._number, before, _encode(piece.text)))
            out.append(self._plain if piece.reason is None and not self._by_token else self._close(piece))
        return b"".join(out)

    def _open(self, index: int, out: list[bytes]) -> bytes:
        choice = b'%s,"choices":[{"index":%d,' % (self._head, index)
        if self._chat:
            out.append(self._next_id() + choice + b'"delta":{"role":"assistant","content":""' + self._plain)
        before = choice + (b'"delta":{"content":' if self._chat else b'"text":')
        self._before[index] = before
        return before

    def _close(self, piece: Piece) -> bytes:
        reason = b"null" if piece.reason is None else _encode(piece.reason)
        ids = b',"token_ids":' + _encode(piece.tokens) if self._token_ids else b""
        between = self._between
        if self._logprobs and piece.logprobs:
            between = between.replace(b"null", self._report(piece), 1)
        return between + reason + ids + b"}]" + self._tail

    def _report(self, piece: Piece) -> bytes:
        if self._chat:
            return _encode(chat_logprobs(piece.logprobs))
        offsets = self._offsets.setdefault(piece.index, CompletionLogprobs())
        return _encode(offsets.write(piece.logprobs))

    def usage(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int, *, continued: bool) -> bytes:
        """The chunk with the counts of the whole call, and no choices. `continued`: see `extension`."""
        usage = usage_json(prompt_tokens, completion_tokens, cached_tokens)
        last = _encode({"choices": [], "usage": usage} | extension(continued))[1:]
        return self._next_id() + self._head + b"," + last + b"\n\n"

    def error(self, error: RequestError) -> bytes:
        """The chunk that ends a stream which cannot go on; `done` follows it."""
        return self._next_id() + b"\ndata: " + error_object(error) + EVENT_END

    def done(self) -> bytes:
        """The last event."""
        return self._next_id() + b"\n" + DONE

    def _next_id(self) -> bytes:
        self._number += 1
        return b"%s%d" % (self._id, self._number)


def extension(continued: bool) -> dict[str, dict[str, bool]]:
    """What Baton adds to an answer that an unlike worker went on with: its tokens may differ from an undisturbed
    run's."""
    return {"baton": {"continued": True}} if continued else {}


def usage_json(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's `usage` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
