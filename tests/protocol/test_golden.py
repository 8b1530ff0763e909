"""Golden bytes of every frame: detect changes that an older peer would misread."""

import msgspec
import pytest

from protocol.codec import decode_command, decode_event, encode
from tests.protocol import vocabulary
from tests.protocol.examples import COMMANDS, EVENTS, FRAMES, GOLDEN, hex_lines

CHANGED = "the bytes of this frame changed: see `tests/protocol/examples.py`"


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_encodes_to_the_golden_bytes(name: str) -> None:
    assert hex_lines(encode(FRAMES[name])) == (GOLDEN / f"{name}.hex").read_text(), CHANGED


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_golden_command_decodes(name: str) -> None:
    assert decode_command(bytes.fromhex((GOLDEN / f"{name}.hex").read_text())) == COMMANDS[name]


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_golden_event_decodes(name: str) -> None:
    assert decode_event(bytes.fromhex((GOLDEN / f"{name}.hex").read_text())) == EVENTS[name]


def test_every_frame_has_golden_bytes_and_every_file_a_frame() -> None:
    assert {type(frame) for frame in FRAMES.values()} == {*vocabulary.COMMANDS, *vocabulary.EVENTS}
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(FRAMES)


def test_a_field_appended_by_a_newer_peer_is_skipped() -> None:
    assert decode_command(b"\x93\xa6cancel\x03\xc0") == COMMANDS["cancel"]


def test_a_field_unknown_to_an_older_peer_takes_its_default() -> None:
    assert decode_command(b"\x92\xa7welcome\x07") == COMMANDS["welcome"]


def test_the_hello_of_another_version_can_be_read() -> None:
    golden = bytes.fromhex((GOLDEN / "hello.hex").read_text())
    newer = golden.replace(b"\xa5hello\x02", b"\xa5hello\x03", 1)
    hello = decode_event(newer)
    assert (hello.protocol, hello.worker, hello.incarnation) == (3, "w0", 7)  # type: ignore[union-attr]


def test_a_chat_of_a_gateway_without_names_and_options_can_be_read() -> None:
    frame = msgspec.msgpack.decode(bytes.fromhex((GOLDEN / "submit_chat.hex").read_text()))
    chat = frame[3]
    tag, messages, tools, now = chat[:4]
    frame[3] = [tag, [message[:2] for message in messages], tools, now]
    assert decode_command(msgspec.msgpack.encode(frame)) == COMMANDS["submit_chat"]
