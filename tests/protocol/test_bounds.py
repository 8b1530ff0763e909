"""Bounds of every field at their edges: the last value is accepted, the next one refused by name."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types

from protocol.codec import decode_command, decode_event, encode
from protocol.commands import Submit
from protocol.errors import ProtocolError
from protocol.events import (
    Capabilities,
    Delta,
    Finished,
    Gauges,
    Heartbeat,
    HeldPrefix,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    Ready,
    ReasoningSegment,
    SharedTier,
    StartedStream,
    Step,
    TextSegment,
    TokenLogprob,
    ToolCallSegment,
    Usage,
)
from protocol.request import (
    Bias,
    ChatInput,
    EmbeddedInput,
    EmbeddingRows,
    Grammar,
    Image,
    ImagePlace,
    InfillInput,
    Limits,
    Message,
    PairInput,
    Pin,
    Pooled,
    Sampling,
    TemplateOptions,
    TextInput,
    TokensInput,
    ToolCall,
    ToolChoice,
)
from tests.protocol import vocabulary

AROUND: dict[type[msgspec.Struct], Callable[[Any], Any]] = {
    TextInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    TokensInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    ChatInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    InfillInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    EmbeddedInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    PairInput: lambda inner: Submit(1, "r", inner, Sampling(), Limits()),
    Pooled: lambda inner: Submit(1, "r", TextInput("x"), Sampling(), Limits(), pooled=inner),
    EmbeddingRows: lambda inner: Submit(1, "r", EmbeddedInput((inner,)), Sampling(), Limits()),
    Message: lambda inner: Submit(1, "r", ChatInput((inner,)), Sampling(), Limits()),
    TemplateOptions: lambda inner: Submit(
        1, "r", ChatInput((Message("user", "x"),), options=inner), Sampling(), Limits()
    ),
    ToolCall: lambda inner: Submit(
        1, "r", ChatInput((Message("assistant", "", tool_calls=(inner,)),)), Sampling(), Limits()
    ),
    Image: lambda inner: Submit(1, "r", ChatInput((Message("user", "x"),), images=(inner,)), Sampling(), Limits()),
    ImagePlace: lambda inner: Submit(1, "r", ChatInput((Message("user", "x", images=(inner,)),)), Sampling(), Limits()),
    Pin: lambda inner: Submit(1, "r", ChatInput((Message("user", "x"),), pins=(inner,)), Sampling(), Limits()),
    ToolChoice: lambda inner: Submit(
        1, "r", ChatInput((Message("user", "x"),), tool_choice=inner), Sampling(), Limits()
    ),
    Grammar: lambda inner: Submit(1, "r", TextInput(""), Sampling(), Limits(), grammar=inner),
    Sampling: lambda inner: Submit(1, "r", TextInput(""), inner, Limits()),
    Bias: lambda inner: Submit(1, "r", TextInput(""), Sampling(logit_bias=(inner,)), Limits()),
    Limits: lambda inner: Submit(1, "r", TextInput(""), Sampling(), inner),
    Capabilities: lambda inner: Ready(inner),
    SharedTier: lambda inner: Ready(Capabilities(), tier=inner),
    Gauges: lambda inner: Heartbeat(inner),
    Delta: lambda inner: Step((inner,)),
    StartedStream: lambda inner: Step((), started=(inner,)),
    HeldPrefix: lambda inner: Step((), prefixes=(inner,)),
    TextSegment: lambda inner: Step((Delta(1, (), segments=(inner,)),)),
    ReasoningSegment: lambda inner: Step((Delta(1, (), segments=(inner,)),)),
    ToolCallSegment: lambda inner: Step((Delta(1, (), segments=(inner,)),)),
    Logprobs: lambda inner: Step((Delta(1, (), "", (inner,)),)),
    TokenLogprob: lambda inner: Step((Delta(1, (), "", (Logprobs(inner),)),)),
    PromptToken: lambda inner: PromptLogprobs(1, 0, (inner,)),
    Usage: lambda inner: Finished(1, "stop", inner),
}


def smallest(info: types.Type) -> Any:
    """Return a value of the type, as small as its bounds allow."""
    match info:
        case types.UnionType(types=members):
            return smallest(members[0])
        case types.VarTupleType(item_type=item, min_length=low):
            return (smallest(item),) * (low or 0)
        case types.StructType(cls=cls):
            return cls(*[smallest(field.type) for field in vocabulary.fields(cls)])
        case types.EnumType(cls=cls):
            return next(iter(cls))
        case types.LiteralType(values=values):
            return min(values, key=str)
        case types.IntType(ge=low):
            return low
        case types.FloatType(ge=low, le=high):
            return low if low is not None else high
        case types.StrType(min_length=low):
            return "a" * (low or 0)
        case types.BytesType(min_length=low):
            return b"a" * (low or 0)
        case types.BoolType():
            return False
        case types.NoneType():
            return None
    raise TypeError(f"no value for {info}")


def edges(info: types.Type) -> Iterator[tuple[str, Any, Any]]:
    """Yield (edge, last value inside, first value outside) for every bound of a type, including items of a list."""
    match info:
        case types.UnionType(types=members):
            for member in members:
                yield from edges(member)
        case types.VarTupleType(item_type=item, min_length=low, max_length=high):
            assert high is not None
            one = (smallest(item),)
            yield "longest", one * high, one * (high + 1)
            if low:
                yield "shortest", one * low, one * (low - 1)
            if isinstance(item, types.IntType | types.StrType):
                for which, inside, outside in edges(item):
                    yield f"item {which}", (inside,), (outside,)
        case types.IntType(ge=low, le=high):
            assert low is not None
            assert high is not None
            yield "lowest", low, low - 1
            yield "highest", high, high + 1
        case types.FloatType(gt=above, ge=low, le=high):
            assert high is not None
            yield "highest", high, math.nextafter(high, math.inf)
            if above is not None:
                yield "lowest", math.nextafter(above, math.inf), above
            else:
                assert low is not None
                yield "lowest", low, math.nextafter(low, -math.inf)
        case types.StrType(min_length=low, max_length=high):
            assert high is not None
            yield "longest", "é" * high, "é" * (high + 1)
            if low:
                yield "shortest", "a" * low, "a" * (low - 1)
        case types.BytesType(max_length=high):
            assert high is not None
            yield "longest", b"a" * high, b"a" * (high + 1)


CASES = [
    pytest.param(struct, index, inside, outside, id=f"{struct.__name__}.{field.name}-{which.replace(' ', '-')}")
    for struct in vocabulary.structs()
    for index, field in enumerate(vocabulary.fields(struct))
    for which, inside, outside in edges(field.type)
]


@pytest.mark.parametrize(("struct", "index", "inside", "outside"), CASES)
def test_edge(struct: type[msgspec.Struct], index: int, inside: Any, outside: Any) -> None:
    values = [smallest(field.type) for field in vocabulary.fields(struct)]
    around = AROUND.get(struct, lambda frame: frame)
    decode = decode_event if isinstance(around(struct(*values)), vocabulary.EVENTS) else decode_command

    accepted = around(struct(*values[:index], inside, *values[index + 1 :]))
    assert decode(encode(accepted)) == accepted

    with pytest.raises(ProtocolError, match=r"Expected .* at `\$"):
        decode(encode(around(struct(*values[:index], outside, *values[index + 1 :]))))


@pytest.mark.parametrize("struct", vocabulary.structs(), ids=lambda struct: struct.__name__)
def test_every_field_that_can_grow_is_bounded(struct: type[msgspec.Struct]) -> None:
    for field in vocabulary.fields(struct):
        assert "None" not in vocabulary.bound_text(field.type), f"{struct.__name__}.{field.name}"
