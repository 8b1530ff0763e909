"""Encodes and decodes frames as msgpack."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from protocol.bounds import MAX_FRAME_BYTES
from protocol.commands import Command, Submit
from protocol.errors import ProtocolError
from protocol.events import Event
from protocol.request import Input

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)

T = TypeVar("T")


def encode(frame: Command | Event) -> bytes:
    """Encode one frame.

    Raises `ProtocolError` for a lone surrogate, an int over 64 bits, and a frame over `MAX_FRAME_BYTES`. Other bounds
    are not checked here: the types and the decoder of the peer check them.
    """
    encoded = _encode(frame)
    if len(encoded) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(encoded)} bytes is over the bound of {MAX_FRAME_BYTES}")
    return encoded


def _encode(value: Command | Event | Input) -> bytes:
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError) as error:
        raise ProtocolError(str(error)[:500]) from error


def encode_commands(commands: Sequence[Command]) -> list[bytes]:
    """Encode the frames of one message. An input that several of them share is encoded once: the sequences of a request
    have the same one, which may be megabytes. Raises `ProtocolError` as `encode` does."""
    if len(commands) == 1:
        return [encode(commands[0])]
    inputs: dict[int, msgspec.Raw] = {}
    frames = []
    for command in commands:
        if isinstance(command, Submit):
            encoded = inputs.get(id(command.input))
            if encoded is None:
                encoded = inputs[id(command.input)] = msgspec.Raw(_encode(command.input))
            command = replace(command, input=encoded)  # the encoder writes it as it is
        frames.append(encode(command))
    return frames


def decode_command(frame: bytes | memoryview) -> Command:
    """Decode a frame from the gateway. Raises `ProtocolError` and no other exception."""
    return _decode(_commands, frame)


def decode_event(frame: bytes | memoryview) -> Event:
    """Decode a frame from a worker. Raises `ProtocolError` and no other exception."""
    return _decode(_events, frame)


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes | memoryview) -> T:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(frame)} bytes is over the bound of {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)[:500]) from error
