"""Parsed output of a sequence on its way from segments to deltas."""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby

from gateway.generation.delta import OutputDelta, ReasoningDelta, Stopper, StopReason, TextDelta, ToolCallDelta
from protocol.events import Logprobs, ReasoningSegment, ToolCallSegment

Output = str | ReasoningSegment | ToolCallSegment
"""A part of the output of one step; a string is text."""


def segment_size(output: Output) -> int:
    """The number of characters."""
    if isinstance(output, str):
        return len(output)
    return len(output.text) if isinstance(output, ReasoningSegment) else len(output.name) + len(output.arguments)


def parsed_deltas(
    index: int,
    output: Sequence[Output],
    ends: Sequence[int],
    tokens: Sequence[int],
    logprobs: Sequence[Logprobs],
    stop: StopReason | None,
    stopped_by: Stopper | None = None,
    call_key: str = "",
) -> list[OutputDelta]:
    """Return what sequence `index` has generated since its client last took: one delta for each run of one kind.

    `ends` are the numbers of tokens when each part of the output was complete. The tokens and log-probabilities of a
    delta are those since the delta before; those after the last part go with the last delta. The ids of calls are a
    function of `call_key`.
    """
    runs = [list(run) for _, run in groupby(range(len(output)), key=lambda at: _kind(output[at]))]
    if not runs:
        ended = TextDelta(index, "", tuple(tokens), tuple(logprobs), stop, stopped_by)
        return [ended] if tokens or stop is not None else []
    deltas: list[OutputDelta] = []
    begin = 0
    for run in runs:
        last = run is runs[-1]
        end = max(len(tokens), len(logprobs)) if last else ends[run[-1]]
        why = (stop, stopped_by) if last else (None, None)
        given = tuple(tokens[begin:end]), tuple(logprobs[begin:end]), *why
        deltas.append(_delta(index, [output[at] for at in run], *given, call_key))
        begin = end
    return deltas


def _kind(output: Output) -> tuple[type[Output], int]:
    return type(output), output.call if isinstance(output, ToolCallSegment) else 0


def _delta(
    index: int,
    run: Sequence[Output],
    tokens: tuple[int, ...],
    logprobs: tuple[Logprobs, ...],
    stop: StopReason | None,
    stopped_by: Stopper | None,
    call_key: str,
) -> OutputDelta:
    calls = [each for each in run if isinstance(each, ToolCallSegment)]
    if calls:
        name = calls[0].name
        arguments = "".join([each.arguments for each in calls])
        # The name comes once, whatever worker continues the call, and so the id is made once.
        ident = _call_id(call_key, index, calls[0].call) if name else ""
        return ToolCallDelta(index, calls[0].call, ident, name, arguments, tokens, logprobs, stop, stopped_by)
    thoughts = [each.text for each in run if isinstance(each, ReasoningSegment)]
    if thoughts:
        return ReasoningDelta(index, "".join(thoughts), tokens, logprobs, stop, stopped_by)
    return TextDelta(
        index, "".join([each for each in run if isinstance(each, str)]), tokens, logprobs, stop, stopped_by
    )


def _call_id(key: str, index: int, call: int) -> str:
    digest = blake2b(f"{key}-{index}-{call}".encode(), digest_size=12)
    return f"call_{digest.hexdigest()}"
