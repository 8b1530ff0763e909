"""Frames to bytes and back: msgpack, one decoder each way, made once."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from protocol.bounds import MAX_FRAME_BYTES
from protocol.commands import Command
from protocol.errors import ProtocolError
from protocol.events import Event

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_events: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)

T = TypeVar("T")

encode: Callable[[Command | Event], bytes] = _encoder.encode
"""Encode one frame. The sender's values are not checked again here: the types and the peer's decoder are the check."""


def decode_command(frame: bytes | memoryview) -> Command:
    """Decode a frame from the gateway. Raises `ProtocolError` and nothing else."""
    return _decode(_commands, frame)


def decode_event(frame: bytes | memoryview) -> Event:
    """Decode a frame from a worker. Raises `ProtocolError` and nothing else."""
    return _decode(_events, frame)


def _decode(decoder: "msgspec.msgpack.Decoder[T]", frame: bytes | memoryview) -> T:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(frame)} bytes is over the bound of {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(str(error)[:500]) from error
