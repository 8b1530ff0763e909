"""Answers in OpenAI's formats, whole or as chunks."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.generation.delta import OutputDelta, ReasoningDelta, TextDelta, TokenCounts, ToolCallDelta
from gateway.openai.chunks import ChatChunks, CompletionChunks
from gateway.openai.fields import FINISH_REASONS, completion_text, extension, fingerprint, usage
from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead, EventRenderer

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for the options of one request."""

    chat: bool
    """A chat completion; otherwise a completion."""
    include_usage: bool = False
    token_ids: bool = False
    logprobs: bool = False
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{token}"

    def events(self, head: AnswerHead) -> EventRenderer:
        kind = ChatChunks if self.chat else CompletionChunks
        return kind(head, include_usage=self.include_usage, token_ids=self.token_ids, logprobs=self.logprobs)

    def whole(self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool) -> bytes:
        by_index: defaultdict[int, list[OutputDelta]] = defaultdict(list)
        for delta in deltas:
            by_index[delta.index].append(delta)
        return _encode(
            {
                "id": head.id,
                "object": "chat.completion" if self.chat else "text_completion",
                "created": head.created,
                "model": head.model,
                "system_fingerprint": fingerprint(head.config_digest),
                "choices": [self._choice(index, by_index[index]) for index in sorted(by_index)],
                "usage": usage(counts),
            }
            | extension(continued)
        )

    def _choice(self, index: int, deltas: Sequence[OutputDelta]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self.chat:
            choice["message"] = _message(deltas)
        else:
            choice["text"] = "".join(map(completion_text, deltas))
        logprobs = None
        if self.logprobs:
            reports = [report for delta in deltas for report in delta.logprobs]
            logprobs = chat_logprobs(reports) if self.chat else CompletionLogprobs().write(reports)
        stop = deltas[-1].stop
        choice |= {"logprobs": logprobs, "finish_reason": None if stop is None else FINISH_REASONS[stop]}
        if self.token_ids:
            choice["token_ids"] = [token for delta in deltas for token in delta.tokens]
        return choice


def _message(deltas: Sequence[OutputDelta]) -> dict[str, Any]:
    calls = _tool_calls(deltas)
    content = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content}
    message["refusal"] = None
    if reasoning := "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_calls(deltas: Sequence[OutputDelta]) -> list[dict[str, Any]]:
    by_call: defaultdict[int, list[ToolCallDelta]] = defaultdict(list)
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            by_call[delta.call].append(delta)
    return [
        {
            "id": "".join(part.id for part in parts),
            "type": "function",
            "function": {
                "name": "".join(part.name for part in parts),
                "arguments": "".join(part.arguments for part in parts),
            },
        }
        for _, parts in sorted(by_call.items())
    ]
