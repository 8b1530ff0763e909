"""The memory that the answer to a request takes: estimated when the request comes, counted while it is generated."""

from collections.abc import Iterable, Sequence

from gateway.errors import invalid
from gateway.generation.parsed_output import Output, segment_size
from gateway.generation.request import GenerationRequest, SequenceRequest
from protocol.events import Logprobs, PromptToken, TokenLogprob
from protocol.request import ChatInput, EmbeddedInput, InfillInput, Input, PairInput, TextInput

TOKEN_BYTES = 40
"""Memory of one token id, which a sequence keeps to its end."""
TEXT_BYTES = 68
"""Memory of the text of one step, besides one byte for each character."""
LOGPROB_BYTES = 144
"""Memory of one log-probability with its token. As JSON it is 30 to 80 bytes."""
USUAL_PIECE = 16
"""Bytes of a token's text that are part of that on average. What is beyond them counts as well."""

MAX_KEPT_LOGPROBS = 64 * 1024
"""Log-probabilities of a streamed answer that its dialect keeps to the end. The last events repeat all of them, which
takes one turn of the event loop 30 ms."""


def token_bytes(logprobs: int | None) -> int:
    """The memory of one token of an answer, with so many most likely tokens beside it; None reports none."""
    return TOKEN_BYTES + TEXT_BYTES + (0 if logprobs is None else LOGPROB_BYTES * (1 + logprobs))


def output_bytes(output: Iterable[Output]) -> int:
    """The memory of the output of steps."""
    return sum([TEXT_BYTES + (len(each) if type(each) is str else segment_size(each)) for each in output])


def logprobs_bytes(reports: Iterable[Logprobs]) -> int:
    """The memory of these log-probabilities."""
    return sum(map(_report_bytes, reports))


def prompt_bytes(tokens: Iterable[PromptToken]) -> int:
    """The memory of these tokens of a prompt."""
    return sum([_bytes(len(each.piece), each.top) for each in tokens])


def _report_bytes(report: Logprobs) -> int:
    return _bytes(len(report.sampled.piece), report.top)


def _bytes(piece: int, top: Sequence[TokenLogprob]) -> int:
    """The memory of a token with a piece of so many bytes, and of those beside it."""
    count = 1 + len(top)
    pieces = piece + sum([len(each.piece) for each in top])
    return LOGPROB_BYTES * count + max(0, pieces - USUAL_PIECE * count)


def check_answer_size(request: GenerationRequest, context: int | None, bound: int) -> None:
    """Refuse a request whose whole answer may take more than `bound` bytes: its tokens are those that it asks for,
    `context` at most. Raises `RequestError`.

    A streamed answer passes, as its client takes it while it is generated, unless its dialect keeps more than
    `MAX_KEPT_LOGPROBS` of it. So does one whose length nobody knows yet, without a limit and before a worker has
    reported its context: both are bounded while they are generated. What an answer has of its prompts comes at once,
    and is bounded for both.
    """
    prompts = size = _check_prompt_size(request, context, bound)
    if request.output.stream:
        if request.output.kept:
            _check_kept_logprobs(request, context)
        return
    each_token = 0
    for sequence in request.sequences:
        tokens = _token_limit(sequence, context)
        if tokens is None:
            return
        each = token_bytes(sequence.sampling.logprobs)
        each_token += each
        size += each * tokens
    if size > bound:
        field, count = request.output.limit_field, len(request.sequences)
        left = bound - prompts
        top = request.sequences[0].sampling.logprobs
        logprobs = "" if top is None else f", each with its log-probability and {top} others,"
        text = (
            f"`{field}`: {count} x {(size - prompts) // each_token} tokens{logprobs} may take {size} bytes, and one "
            f"answer may have {bound} (max_answer_bytes); set `{field}` to {left // each_token} or less, ask for fewer "
            "choices or log-probabilities, or stream the answer"
        )
        raise invalid(field, text)


def _check_prompt_size(request: GenerationRequest, context: int | None, bound: int) -> int:
    """Return the memory that the prompts may take in the answer."""
    size = 0
    for sequence in request.sequences:
        if sequence.echo and isinstance(sequence.input, TextInput):
            size += len(sequence.input.text)
        if sequence.prompt_logprobs is not None:
            tokens = _most_tokens(sequence.input)
            most = tokens if context is None else min(tokens, context)
            size += LOGPROB_BYTES * (1 + sequence.prompt_logprobs) * most
    if size > bound:
        field = request.output.prompt_field
        text = (
            f"`{field}`: what the answer has of its prompts may take {size} bytes, and one answer may have {bound} "
            "(max_answer_bytes); send shorter prompts or fewer, or ask for fewer log-probabilities"
        )
        raise invalid(field, text)
    return size


def _most_tokens(source: Input) -> int:
    """The tokens that a prompt may have: of a text, one for each character, which few texts exceed."""
    if isinstance(source, TextInput):
        return len(source.text)
    if isinstance(source, InfillInput):
        return len(source.prefix) + len(source.suffix)
    if isinstance(source, ChatInput):
        return len(source.tools_json) + sum(len(each.content) + len(each.reasoning) for each in source.messages)
    if isinstance(source, EmbeddedInput):
        return source.count
    if isinstance(source, PairInput):
        return len(source.first) + len(source.second)
    return len(source.tokens)


def _token_limit(sequence: SequenceRequest, context: int | None) -> int | None:
    """The most tokens that may be generated; None is unknown."""
    return min((count for count in (sequence.limits.max_tokens, context) if count is not None), default=None)


def _check_kept_logprobs(request: GenerationRequest, context: int | None) -> None:
    (sequence,) = request.sequences
    top = sequence.sampling.logprobs
    tokens = _token_limit(sequence, context)
    if top is None or tokens is None or tokens * (1 + top) <= MAX_KEPT_LOGPROBS:
        return
    field = request.output.limit_field
    text = (
        f"`{field}`: {tokens} tokens, each with its log-probability and {top} others, are more than the "
        f"{MAX_KEPT_LOGPROBS} log-probabilities of a stream; set `{field}` to {MAX_KEPT_LOGPROBS // (1 + top)} or "
        "less, ask for fewer log-probabilities, or do not stream the answer"
    )
    raise invalid(field, text)
