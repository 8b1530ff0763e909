"""The parser yields the same events however their bytes are split."""

import pytest

from cli.client.event_parser import Event, EventParser

TEXT = "a\u2028b\u0085c\x0bd"
WHOLE = f"id: 1\r\ndata: {TEXT}\r\n\r\n: a comment\n\nevent: x\ndata: x\ndata:y\n\nid: 3\ndata: half".encode()


@pytest.mark.parametrize("size", [1, 2, 3, len(WHOLE)])
def test_unicode_line_separators_are_text(size: int) -> None:
    parser = EventParser()
    parts = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    assert [event for part in parts for event in parser.feed(part)] == [
        Event("1", TEXT.encode()),
        Event("", b"x\ny"),
    ]
    assert list(parser.feed(b"\n\n")) == [Event("3", b"half")]
