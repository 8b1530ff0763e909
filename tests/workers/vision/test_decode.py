"""Image files become upright RGB pictures, or are refused with what is wrong."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image as Pillow
from PIL import ImageOps

from protocol.bounds import MAX_IMAGE_PIXELS, MAX_IMAGE_SIDE
from protocol.request import Image, ImageFormat
from tests.workers.vision.image_files import as_file, picture
from workers.vision.decode import MAX_SCANS, SCAN, STRIP, decode, upright_size
from workers.vision.file_parts import MAX_PARTS, without_metadata
from workers.vision.image_refused import ImageRefused

SOURCE = picture(13, 7)
FORMATS: tuple[ImageFormat, ...] = ("gif", "jpeg", "png", "webp")
LOSSLESS: dict[ImageFormat, dict[str, Any]] = {"png": {}, "webp": {"lossless": True}}


@pytest.mark.parametrize("format", sorted(LOSSLESS))
def test_a_lossless_file_has_its_pixels(format: ImageFormat) -> None:
    image = as_file(SOURCE, format, **LOSSLESS[format])
    decoded = decode(image)
    assert decoded.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(decoded), np.asarray(SOURCE))
    assert upright_size(image) == (13, 7)


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    source = SOURCE.convert(mode)
    image = as_file(source, "jpeg" if mode in ("CMYK", "YCbCr") else "png")
    decoded = decode(image)
    assert (decoded.mode, decoded.size) == ("RGB", (13, 7))
    if image.format == "png":
        np.testing.assert_array_equal(np.asarray(decoded), np.asarray(source.convert("RGB")))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparent_parts_are_white(mode: str) -> None:
    source = picture(5, STRIP + 3, "RGBA").convert(mode)
    white = Pillow.new("RGBA", source.size, (255, 255, 255, 255))
    expected = Pillow.alpha_composite(white, source.convert("RGBA")).convert("RGB")
    np.testing.assert_array_equal(np.asarray(decode(as_file(source))), np.asarray(expected))


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    source = Pillow.new("P", (4, 4), 1)
    source.putpalette([0, 0, 0, 10, 20, 30])
    source.putpixel((2, 1), 0)
    for format in ("png", "gif"):
        decoded = decode(as_file(source, format, transparency=1))
        assert decoded.getpixel((2, 1)) == (0, 0, 0)
        assert decoded.getpixel((0, 0)) == (255, 255, 255)


def test_16_bits_keep_their_high_byte() -> None:
    values = np.arange(0, 65536, 4369, dtype=np.uint16).reshape(4, 4)
    decoded = decode(as_file(Pillow.fromarray(values)))
    np.testing.assert_array_equal(np.asarray(decoded)[..., 0], values >> 8)
    clear = decode(as_file(Pillow.fromarray(values), transparency=4369))
    assert [clear.getpixel((at, 0)) for at in (0, 1, 2)] == [(0, 0, 0), (255, 255, 255), (34, 34, 34)]


def test_the_first_frame_of_an_animation() -> None:
    frames = [Pillow.new("RGB", (6, 4), colour) for colour in ("red", "blue")]
    for format in ("gif", "webp", "png"):
        image = as_file(frames[0], format, save_all=True, append_images=frames[1:])
        assert decode(image).getpixel((0, 0)) == pytest.approx((255, 0, 0), abs=3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_an_image_upright(orientation: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    for format in ("png", "jpeg", "webp"):
        image = as_file(SOURCE, format, exif=exif)
        decoded = decode(image)
        assert decoded.size == upright_size(image) == ((7, 13) if orientation >= 5 else (13, 7))
    turned = np.asarray(decode(as_file(SOURCE, exif=exif)))
    pixels = np.asarray(SOURCE)
    expected = {1: pixels, 3: pixels[::-1, ::-1], 6: np.rot90(pixels, -1), 8: np.rot90(pixels)}
    if orientation in expected:
        np.testing.assert_array_equal(turned, expected[orientation])


def test_exif_behind_the_pixels_of_a_png_is_found() -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    image = as_file(SOURCE, exif=exif)
    start = image.data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(image.data[start : start + 4], "big")
    last = image.data.index(b"IEND") - 4
    moved = image.data[:start] + image.data[end:last] + image.data[start:end] + image.data[last:]
    late = replace(image, data=moved)
    assert decode(late).size == upright_size(late) == (7, 13)


def test_broken_metadata_turn_nothing() -> None:
    image = as_file(SOURCE, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert upright_size(image) == (13, 7)


@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_file_is_refused(format: ImageFormat) -> None:
    image = as_file(picture(40, 30), format)
    with pytest.raises(ImageRefused, match=f"broken, truncated or no {format} image"):
        decode(replace(image, data=image.data[: len(image.data) * 2 // 3]))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_another_format_is_refused(format: ImageFormat) -> None:
    other = as_file(SOURCE, "png" if format != "png" else "jpeg")
    with pytest.raises(ImageRefused, match=r"no (gif|jpeg|png) image|webp file has 0 x 0 pixels"):
        decode(replace(other, format=format))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_another_size_is_refused_before_it_is_decoded(format: ImageFormat) -> None:
    with pytest.raises(ImageRefused, match=f"{format} file has 13 x 7 pixels, the request says 14 x 7"):
        decode(replace(as_file(SOURCE, format), width=14))


@pytest.mark.parametrize("lossless", [False, True])
def test_all_headers_of_webp(lossless: bool) -> None:
    """Simple files, and extended ones, which animations and metadata make."""
    for options in ({}, {"exif": Pillow.Exif().tobytes()}, {"save_all": True, "append_images": [SOURCE]}):
        image = as_file(SOURCE, "webp", lossless=lossless, **options)
        assert decode(image).size == (13, 7)


def test_a_bomb_is_refused_by_its_header() -> None:
    """A PNG of more pixels than Pillow takes, though the request says otherwise."""
    data = png(20_000, 20_000)
    with pytest.raises(ImageRefused, match="no png image"):
        decode(Image("png", 100, 100, data))
    with pytest.raises(ImageRefused, match="over the bounds"):
        decode(Image("png", MAX_IMAGE_SIDE, MAX_IMAGE_PIXELS // MAX_IMAGE_SIDE + 1, data))


def test_the_largest_image_is_not_over_the_bounds() -> None:
    height = MAX_IMAGE_PIXELS // MAX_IMAGE_SIDE
    image = Image("png", MAX_IMAGE_SIDE, height, png(MAX_IMAGE_SIDE, height))
    assert upright_size(image) == (MAX_IMAGE_SIDE, height)
    with pytest.raises(ImageRefused, match="over the bounds"):
        upright_size(replace(image, width=MAX_IMAGE_SIDE + 1))


def test_scans_of_a_jpeg_are_bounded() -> None:
    image = as_file(SOURCE, "jpeg", progressive=True)
    assert 1 < image.data.count(SCAN) <= MAX_SCANS
    decode(image)
    more = MAX_SCANS - image.data.count(SCAN)
    end = image.data.rindex(b"\xff\xd9")
    scan = image.data[image.data.rindex(SCAN) : end]
    full = image.data[:end] + scan * more + image.data[end:]
    decode(replace(image, data=full))
    with pytest.raises(ImageRefused, match=f"more than {MAX_SCANS} scans"):
        decode(replace(image, data=image.data[:end] + scan * (more + 1) + image.data[end:]))


def png(width: int, height: int) -> bytes:
    """Return a PNG whose header states sides, and which has hardly any pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    )


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_chunks_of_a_file_are_bounded() -> None:
    """Pillow takes up to 60 us for each, so that a file of 12 MB would hold the prompts of a worker for a minute."""
    image = as_file(SOURCE)
    few, before, after = image.data.count(b"IDAT") + 2, image.data[:33], image.data[33:]
    most = replace(image, data=before + chunk(b"prIv") * (MAX_PARTS - few) + after)
    assert decode(most).size == upright_size(most) == (13, 7)
    webp = as_file(SOURCE, "webp", lossless=True)
    body = webp.data[12:] + b"ABCD\0\0\0\0" * MAX_PARTS
    for more in (
        replace(image, data=before + chunk(b"prIv") * (MAX_PARTS - few + 1) + after),
        replace(webp, data=b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body),
    ):
        for read in (decode, upright_size):
            with pytest.raises(ImageRefused, match=f"more than {MAX_PARTS} chunks"):
                read(more)


def test_pillow_reads_no_metadata() -> None:
    """Entries of metadata take as long as chunks do: those that no pixel depends on are not there."""
    text = chunk(b"tEXt", b"key\0text")
    png = as_file(SOURCE)
    bare = without_metadata(png.data[:33] + (text + chunk(b"prIv")) * 3 + png.data[33:], "png")
    assert bare.data == png.data
    jpeg = as_file(SOURCE, "jpeg")
    photoshop = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\0" * 5000
    segment = b"\xff\xed" + struct.pack(">H", 2 + len(photoshop)) + photoshop
    comment = b"\xff\xfe\0\x04ab"
    full = jpeg.data[:2] + segment + comment + jpeg.data[2:]
    assert without_metadata(full, "jpeg").data == jpeg.data
    fills = jpeg.data[:2] + b"\xff" * (MAX_PARTS + 1) + jpeg.data[2:]
    with pytest.raises(ImageRefused, match=f"more than {MAX_PARTS} segments"):
        decode(replace(jpeg, data=fills))


def test_the_orientation_is_that_of_pillow() -> None:
    """In EXIF of either byte order and several types, and in XMP where EXIF has none."""
    xmp = b'<rdf:Description tiff:Orientation="6"/>'
    sources: list[dict[str, Any]] = [{"xmp": xmp}]
    for order, start in (("<", b"II*\0"), (">", b"MM\0*")):
        for kind, value in ((1, "B3x"), (3, "H2x"), (4, "I")):
            entry = struct.pack(f"{order}HHI{value}", 0x0112, kind, 1, 5)
            sources.append({"exif": b"Exif\0\0" + start + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)})
    sources.append({"exif": Pillow.Exif().tobytes(), "xmp": xmp})
    sources.append({"exif": b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x0112, 3, 1, 9, 0) + bytes(4)})
    for options in sources:
        for format in ("jpeg", "webp"):
            image = as_file(SOURCE, format, **options)
            expected = ImageOps.exif_transpose(Pillow.open(io.BytesIO(image.data))).convert("RGB")
            np.testing.assert_array_equal(np.asarray(decode(image)), np.asarray(expected))
            assert upright_size(image) == expected.size
