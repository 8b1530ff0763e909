"""Whole answers as one JSON object, in OpenAI's formats."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from gateway.openai.sse import extension, usage_json
from gateway.routing.plan import Form
from gateway.routing.request_group import Call
from gateway.routing.sequence import Piece

_encode = msgspec.json.Encoder().encode


def whole_answer(form: Form, call: Call, answer_id: str, created: int) -> bytes:
    """The body of a call whose sequences all ended well."""
    choices = [_choice(form, piece) for piece in _in_order(call.take(with_tokens=True))]
    return _encode(
        {
            "id": answer_id,
            "object": "chat.completion" if form.chat else "text_completion",
            "created": created,
            "model": call.model,
            "system_fingerprint": call.fingerprint,
            "choices": choices,
            "usage": usage_json(*call.usage(form.per_prompt)),
        }
        | extension(call.continued)
    )


def _in_order(pieces: Sequence[Piece]) -> list[Piece]:
    return sorted(pieces, key=lambda piece: piece.index)


def _choice(form: Form, piece: Piece) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": piece.index}
    if form.chat:
        choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
    else:
        choice["text"] = piece.text
    logprobs = None
    if form.logprobs:
        logprobs = chat_logprobs(piece.logprobs) if form.chat else CompletionLogprobs().write(piece.logprobs)
    choice |= {"logprobs": logprobs, "finish_reason": piece.reason}
    if form.return_token_ids:
        choice["token_ids"] = piece.tokens
    return choice
