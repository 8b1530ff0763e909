"""Codec: frames survive the round trip, and any other bytes raise ProtocolError."""

import math
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.bounds import MAX_FRAME_BYTES, MAX_TEXT, clip
from protocol.codec import decode_command, decode_event, encode, encode_commands
from protocol.commands import Cancel, Command, Submit
from protocol.errors import ProtocolError
from protocol.events import Event
from protocol.request import ChatInput, Input, Limits, Message, Sampling, TextInput, TokensInput
from tests.protocol import vocabulary
from tests.protocol.examples import FRAMES
from tests.protocol.strategies import frames, of_struct

DECODERS: list[Callable[[bytes], Command | Event]] = [decode_command, decode_event]
HUGE_ARRAY = b"\xdd\xff\xff\xff\xff"
HUGE_MAP = b"\xdf\xff\xff\xff\xff"
HUGE_TEXT = b"\xdb\xff\xff\xff\xff"
HUGE_BINARY = b"\xc6\xff\xff\xff\xff"
HUGE_EXTENSION = b"\xc9\xff\xff\xff\xff\x01"


def refused_or_frame(frame: bytes) -> None:
    """Decode bytes: a frame or a ProtocolError. Any other exception fails the test."""
    for decode in DECODERS:
        try:
            decoded = decode(frame)
        except ProtocolError:
            continue
        assert isinstance(decoded, vocabulary.COMMANDS + vocabulary.EVENTS)


@pytest.mark.parametrize("struct", vocabulary.COMMANDS, ids=lambda struct: struct.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_commands_round_trip(struct: type[msgspec.Struct], data: st.DataObject) -> None:
    frame = data.draw(of_struct(struct))
    assert decode_command(encode(frame)) == frame
    assert decode_command(memoryview(encode(frame))) == frame


@pytest.mark.parametrize("struct", vocabulary.EVENTS, ids=lambda struct: struct.__name__)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_events_round_trip(struct: type[msgspec.Struct], data: st.DataObject) -> None:
    frame = data.draw(of_struct(struct))
    assert decode_event(encode(frame)) == frame


@given(frames(vocabulary.COMMANDS))
@settings(max_examples=50, deadline=None)
def test_a_command_is_not_an_event(frame: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_event(encode(frame))


@given(frames(vocabulary.EVENTS))
@settings(max_examples=50, deadline=None)
def test_an_event_is_not_a_command(frame: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_command(encode(frame))


@given(st.binary(max_size=512))
@settings(max_examples=500, deadline=None)
def test_random_bytes(noise: bytes) -> None:
    refused_or_frame(noise)


@given(frames(vocabulary.COMMANDS + vocabulary.EVENTS), st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_mutated_frames(frame: Any, chance: random.Random) -> None:
    mutant = bytearray(encode(frame))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(mutant) + 1)
        match chance.randrange(4):
            case 0:
                mutant[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del mutant[at:]
            case 2:
                mutant[at:at] = chance.choice([HUGE_ARRAY, HUGE_MAP, HUGE_TEXT, HUGE_BINARY, HUGE_EXTENSION, b"\xc1"])
            case 3:
                mutant[at:at] = mutant[: chance.randrange(32)]
        refused_or_frame(bytes(mutant))


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_every_truncation_of_a_frame_is_refused(name: str) -> None:
    whole = encode(FRAMES[name])
    for length in range(len(whole)):
        for decode in DECODERS:
            with pytest.raises(ProtocolError):
                decode(whole[:length])


@pytest.mark.parametrize("name", sorted(FRAMES))
@pytest.mark.parametrize("lie", [HUGE_ARRAY, HUGE_MAP, HUGE_TEXT, HUGE_BINARY, HUGE_EXTENSION], ids=bytes.hex)
def test_a_header_that_claims_gigabytes_costs_nothing(name: str, lie: bytes) -> None:
    """At every position of every frame, a length of 2**32 - 1 allocates no more than the bytes that are there."""
    whole = encode(FRAMES[name])
    for at in range(len(whole)):
        tracemalloc.start()
        try:
            refused_or_frame(whole[:at] + lie + whole[at:])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024


def test_the_largest_list_allocates_in_proportion_to_its_bytes() -> None:
    row = b"\x92\x01\xdd\x00\x00\x40\x00" + b"\xcd\x7f\xff" * 16384
    frame = b"\x92\xa4step\x98" + row * 8
    tracemalloc.start()
    try:
        decode_event(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 * len(frame)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81", b"\x92\xa4stop\x91", b"\x92\xa4beat\x81", b"\x98\xa6submit\x91"])
def test_deep_nesting(opening: bytes) -> None:
    refused_or_frame(opening + opening[-1:] * 1_000_000)


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_invalid_utf8_is_refused_in_tags_and_in_fields(text: bytes) -> None:
    packed = bytes([0xA0 + len(text)]) + text
    with pytest.raises(ProtocolError):
        decode_command(b"\x91" + packed)
    with pytest.raises(ProtocolError):
        decode_command(b"\x93\xa7welcome\x01" + packed)
    with pytest.raises(ProtocolError):
        decode_event(b"\x93\xa4step\x91\x93\x01\x90" + packed)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(value: float) -> None:
    for sampling in (Sampling(temperature=value), Sampling(top_p=value), Sampling(min_p=value)):
        with pytest.raises(ProtocolError):
            decode_command(encode(Submit(1, "r", TextInput("x"), sampling, Limits())))


@pytest.mark.parametrize("frame", [Cancel(1 << 64), Cancel(-(1 << 63) - 1)])
def test_unencodable_values_are_refused(frame: Command) -> None:
    with pytest.raises(ProtocolError):
        encode(frame)


def test_a_lone_surrogate_is_refused_when_encoded() -> None:
    with pytest.raises(ProtocolError, match="surrogates"):
        encode(Submit(1, "r", TextInput("\ud800"), Sampling(), Limits()))


def test_a_refusal_is_short_however_long_the_frame() -> None:
    with pytest.raises(ProtocolError) as refusal:
        decode_command(b"\x91\xdb\x00\x0f\x00\x00" + b"t" * 0xF0000)
    assert len(str(refusal.value)) <= 500


def test_a_frame_at_its_bound_is_read_and_one_byte_more_is_refused() -> None:
    def padded(extra: int) -> bytes:
        head = b"\x93\xa6cancel\x03\xc6"
        return head + (size := MAX_FRAME_BYTES + extra - len(head) - 4).to_bytes(4, "big") + bytes(size)

    assert decode_command(padded(0)) == Cancel(3)
    with pytest.raises(ProtocolError, match="over the bound"):
        decode_command(padded(1))


def test_a_frame_over_its_bound_is_refused_when_encoded() -> None:
    wide = TextInput("\N{GRINNING FACE}" * MAX_TEXT)
    with pytest.raises(ProtocolError, match="over the bound"):
        encode(Submit(1, "r", wide, Sampling(), Limits()))


@given(st.text(max_size=40), st.integers(0, 30))
def test_clip_fits_and_always_encodes(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert len(clipped) <= limit
    clipped.encode()


def test_clip_replaces_what_utf8_cannot_carry() -> None:
    assert clip("a\udcffb") == "a?b"


def test_the_commands_of_a_message_are_encoded_as_each_by_itself() -> None:
    shared, other = ChatInput((Message("user", "hi"),), now=5), TextInput("x" * 100)
    inputs: list[Input] = [shared, other, shared, shared, TokensInput((1, 2)), other]
    commands: list[Command] = [
        Submit(number, "r", each, Sampling(seed=number), Limits(max_tokens=3)) for number, each in enumerate(inputs)
    ]
    commands.append(Cancel(7))
    assert encode_commands(commands) == [encode(command) for command in commands]
    assert encode_commands(commands[:1]) == [encode(commands[0])]


def test_an_input_that_cannot_be_encoded_is_refused_in_a_message_too() -> None:
    bad = Submit(1, "r", TextInput("\ud800"), Sampling(), Limits())
    with pytest.raises(ProtocolError):
        encode_commands([bad, bad])
