"""Headers of image files: sides without decoding, in a bounded number of steps."""

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.images.checks import checked_image
from gateway.images.header import MAX_SEGMENTS, MAX_SUB_BLOCKS, HeaderInvalid, read_header
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS, MAX_IMAGE_SIDE
from tests.gateway.images.files import PNG, picture, png_header

LOSSY = picture("webp", 300, 7)
FILES = {
    "gif": ("gif", picture("gif", 300, 7)),
    "jpeg": ("jpeg", picture("jpeg", 300, 7)),
    "jpeg-progressive": ("jpeg", picture("jpeg", 300, 7, progressive=True, exif=b"Exif\0\0" + b"\0" * 60_000)),
    "png": ("png", picture("png", 300, 7)),
    "webp": ("webp", LOSSY),
    "webp-extended": ("webp", picture("webp", 300, 7, exif=b"Exif\0\0MM")),
    "webp-lossless": ("webp", picture("webp", 300, 7, lossless=True)),
}
EMPTY = b"\xff\xfe\x00\x02"
"""A segment of a JPEG without content."""
FRAME = b"\xff\xc0\x00\x0b\x08\x00\x03\x00\x05\x01\x01\x11\x00"
GIF = b"GIF89a\x05\x00\x03\x00\x00\x00\x00"


@pytest.mark.parametrize("name", sorted(FILES))
def test_formats_and_sides_are_those_that_pillow_writes_and_headers_that_are_cut_off_are_refused(name: str) -> None:
    kind, data = FILES[name]
    assert read_header(data) == (kind, 300, 7)
    for end in (0, 3, 11, 15, 19, 22):
        with pytest.raises(HeaderInvalid, match=r"truncated|not a PNG|damaged"):
            read_header(data[:end])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a PNG, JPEG, WebP or GIF", id="svg"),
        pytest.param(b"%PDF-1.7 " + PNG, "not a PNG, JPEG, WebP or GIF", id="polyglot"),
        pytest.param(PNG[:20] + b"\x7f" + PNG[21:], "damaged", id="png checksum"),
        pytest.param(b"\xff\xd8" + FRAME + FRAME + b"\xff\xda", "sides twice", id="jpeg with two frames"),
        pytest.param(b"\xff\xd8\xff\xda", "no sides", id="jpeg without a frame"),
        pytest.param(b"\xff\xd8" + EMPTY * MAX_SEGMENTS + FRAME, "over 1024 segments", id="jpeg of segments"),
        pytest.param(b"\xff\xd8\xff" + b"\xff" * 5000, "over 1024 segments", id="jpeg of fill bytes"),
        pytest.param(b"\xff\xd8\xff\xe0\x00\x01", "damaged", id="jpeg segment without length"),
        pytest.param(GIF + (b"!\xff" + b"\x01a" * 1000 + b"\0") * 20, "over 8192 sub-blocks", id="gif of blocks"),
        pytest.param(GIF + b"!\xfe\x00" * 3000, "over 1024 blocks", id="gif of extensions"),
        pytest.param(GIF + b";", "damaged", id="gif without a frame"),
        pytest.param(b"RIFF\xff\xff\xff\xffWEBP" + LOSSY[12:], "truncated", id="webp longer than the file"),
        pytest.param(LOSSY[:12] + b"XXXX" + LOSSY[16:], "damaged", id="webp of another chunk"),
    ],
)
def test_headers_that_contradict_themselves_or_cost_too_much_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(HeaderInvalid, match=problem):
        read_header(data)


def test_sub_blocks_of_a_gif_up_to_their_bound() -> None:
    frame = b"," + struct.pack("<HHHH", 0, 0, 1, 1)
    blocks = (b"!\xfe" + b"\x01a" * (MAX_SUB_BLOCKS // 2) + b"\0") * 2
    assert read_header(GIF + blocks + frame).format == "gif"
    with pytest.raises(HeaderInvalid, match=f"over {MAX_SUB_BLOCKS} sub-blocks"):
        read_header(GIF + blocks + b"!\xfe\x01a\0" + frame)


def test_a_frame_larger_than_its_gif_counts() -> None:
    assert read_header(GIF + b"," + struct.pack("<HHHH", 10, 20, 65_000, 60_000)) == ("gif", 65_010, 60_020)


@given(st.sampled_from(sorted(FILES)), st.integers(0, 60), st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(name: str, at: int, junk: bytes) -> None:
    data = FILES[name][1]
    try:
        found = read_header(data[:at] + junk + data[at + len(junk) :])
    except HeaderInvalid:
        return
    assert found.width >= 0
    assert found.height >= 0


@pytest.mark.parametrize("begin", [b"\xff\xd8" + EMPTY * 10, GIF + b"!\xff"], ids=["jpeg", "gif"])
def test_the_largest_file_takes_less_than_five_milliseconds(begin: bytes) -> None:
    data = begin + (EMPTY if begin[0] == 0xFF else b"\x01a") * (MAX_IMAGE_BYTES // 4)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        with pytest.raises(HeaderInvalid):
            read_header(data)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.005


@pytest.mark.parametrize(
    ("width", "height", "problem"),
    [
        (MAX_IMAGE_SIDE, MAX_IMAGE_PIXELS // MAX_IMAGE_SIDE, ""),
        (MAX_IMAGE_SIDE + 1, 1, "a side may have 16384"),
        (1, MAX_IMAGE_SIDE + 1, "a side may have 16384"),
        (8000, 5000, ""),
        (8000, 5001, "40000000 are allowed"),
        (0, 5, "0 x 5 pixels"),
        (5, 0, "5 x 0 pixels"),
    ],
)
def test_bounds_of_sides_and_pixels(width: int, height: int, problem: str) -> None:
    data = png_header(width, height)
    if not problem:
        made = checked_image(data, "images[0]", "low", b"d")
        assert (made.width, made.height, made.format, made.detail, made.field) == (
            width,
            height,
            "png",
            "low",
            "images[0]",
        )
        return
    with pytest.raises(RequestError, match=problem) as caught:
        checked_image(data, "images[0]", "auto", b"")
    assert (caught.value.status, caught.value.field) == (400, "images[0]")
