"""Output deltas, stop reasons and token counts, independent of the API dialect."""

from enum import StrEnum
from typing import ClassVar, NamedTuple

from msgspec import Struct

from protocol.events import Logprobs, PromptToken


class StopReason(StrEnum):
    """The reason for which a sequence that ended well stopped."""

    END = "stop"
    """The model ended its answer, or a stop string of the request came."""
    LENGTH = "length"
    """The token limit of the request or the end of the context was reached."""
    TOOL_CALLS = "tool_calls"
    """The model waits for the results of its tool calls."""


Stopper = str | int
"""The stop string of a request, or its stop token, that ended a sequence."""


class TextDelta(Struct, frozen=True, gc=False):
    """Text of the answer; empty where tokens have added none yet."""

    index: int
    """The sequence, as the request numbers it."""
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    stop: StopReason | None = None
    stopped_by: Stopper | None = None


class ReasoningDelta(Struct, frozen=True, gc=False):
    """Text that the model thought before its answer."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    stop: StopReason | None = None
    stopped_by: Stopper | None = None


class ToolCallDelta(Struct, frozen=True, gc=False):
    """A part of one tool call. The first part has `id` and `name`; the `arguments` of all parts are one JSON text."""

    index: int
    call: int
    """The position of the call among those of its sequence, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    stop: StopReason | None = None
    stopped_by: Stopper | None = None


class PromptDelta(Struct, frozen=True, gc=False):
    """A part of the prompt, of a request that asked for it: it comes before the output of its sequence. The text of a
    prompt that was given as text comes before its tokens; that of other prompts is the text of these tokens."""

    index: int
    text: str = ""
    """Empty unless the text was asked for."""
    prompt: tuple[PromptToken, ...] = ()
    tokens: ClassVar[tuple[int, ...]] = ()
    logprobs: ClassVar[tuple[Logprobs, ...]] = ()
    stop: ClassVar[None] = None
    stopped_by: ClassVar[None] = None


class VectorDelta(Struct, frozen=True, gc=False):
    """The vector that was computed of a prompt in place of an answer."""

    index: int
    vector: bytes
    """Numbers in float32, little-endian."""
    text: ClassVar[str] = ""
    tokens: ClassVar[tuple[int, ...]] = ()
    logprobs: ClassVar[tuple[Logprobs, ...]] = ()
    stop: ClassVar[None] = None
    stopped_by: ClassVar[None] = None


OutputDelta = TextDelta | ReasoningDelta | ToolCallDelta | PromptDelta | VectorDelta
"""The output of one sequence since its client last took, of one kind, in the order of generation.

`tokens` and `logprobs`, one for each token, are empty unless the request asked for them. `stop` is set on the last
delta of a sequence, and on no other, and so is `stopped_by` if the sequence ended at a stop string or a stop token of
the request.
"""


class TokenCounts(NamedTuple):
    """Tokens of a whole request. A prompt counts once, however many sequences share it."""

    prompt: int
    completion: int
    cached: int
    """Tokens of the prompts whose KV was reused."""
    prefill_ms: int = 0
    """Milliseconds that workers took for the prompts."""
    decode_ms: int = 0
    """Milliseconds that workers took for the answers."""
    created: int = 0
    """Tokens of pinned prefixes of the prompts whose KV was computed and is kept."""
    reasoning: int = 0
    """Those of the generated tokens that are reasoning, where it is parsed."""
    sparse_kept: int = 0
    """Tokens of the prompts that were computed, where others were left out; 0 where none were."""

    @property
    def sparse_details(self) -> dict[str, int]:
        """The field of a `usage` object that says so; none where no token was left out."""
        return {"sparse_kept_tokens": self.sparse_kept} if self.sparse_kept else {}
