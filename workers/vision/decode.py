"""Decoding of image files by Pillow, within bounds.

Only the format that the request names is decoded, and no pixel before the sides in the file are those that the gateway
read of its header. A picture takes at most `PIXEL_BYTES` of memory per pixel while it is decoded.
"""

import io

import numpy as np
from PIL import Image as Pillow

from protocol.bounds import MAX_IMAGE_PIXELS, MAX_IMAGE_SIDE
from protocol.request import Image
from workers.vision.file_parts import TooManyParts, orientation, without_metadata
from workers.vision.image_refused import ImageRefused

PIXEL_BYTES = 24
"""Bytes of memory per pixel: WebP with transparency takes about 21, other formats up to 13."""
MAX_SCANS = 100
"""Scans of a JPEG, each of which is a pass over all pixels: progressive ones have about ten."""
STRIP = 256
"""Rows that are blended at a time."""
UPRIGHT = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
"""The transformations to upright, by orientation; those from 5 on exchange width and height."""
SCAN = b"\xff\xda"
"""The marker of a scan; within its data the byte 255 is followed by 0."""
_16_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def decode(image: Image) -> Pillow.Image:
    """Decode an image file to RGB, upright as EXIF says: the first frame of an animation, transparent parts on white,
    and 16 bits a channel reduced to 8.

    Raises `ImageRefused` for a file that is broken, truncated or of another format or size than `image` says.
    """
    picture, turned = _open(image)
    try:
        picture.load()
        return _rgb(picture.transpose(UPRIGHT[turned]) if turned in UPRIGHT else picture)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises errors of many kinds for broken files
        raise _broken(image, error) from error


def upright_size(image: Image) -> tuple[int, int]:
    """Return width and height of an image as `decode` makes it, from the file's header, without decoding pixels.

    Raises `ImageRefused`.
    """
    picture, turned = _open(image)
    return picture.size[::-1] if turned >= 5 else picture.size


def _open(image: Image) -> tuple[Pillow.Image, int]:
    """Read the header of a file: the picture, not decoded yet, and its orientation. Raises `ImageRefused`."""
    sides = (image.width, image.height)
    if max(sides) > MAX_IMAGE_SIDE or image.width * image.height > MAX_IMAGE_PIXELS:
        bounds = f"a side of {MAX_IMAGE_SIDE} and {MAX_IMAGE_PIXELS} pixels in all"
        raise ImageRefused(f"{image.width} x {image.height} pixels are over the bounds of {bounds}: make it smaller")
    if image.format == "webp" and (found := _webp_size(image.data)) != sides:
        raise _other_size(image, found)  # before Pillow, which allocates frames when it opens a WebP file
    if image.format == "jpeg" and image.data.count(SCAN) > MAX_SCANS:
        raise ImageRefused(f"the JPEG file has more than {MAX_SCANS} scans: save it anew")
    try:
        parts = without_metadata(image.data, image.format)
        picture: Pillow.Image = Pillow.open(io.BytesIO(parts.data), formats=[image.format.upper()])
    except MemoryError:
        raise
    except TooManyParts as error:
        raise ImageRefused(f"the {image.format} file: {error}") from error
    except Exception as error:  # Pillow raises errors of many kinds for broken files
        raise _broken(image, error) from error
    if picture.size != sides:
        raise _other_size(image, picture.size)
    return picture, orientation(parts, picture.info)


def _other_size(image: Image, found: tuple[int, int]) -> ImageRefused:
    return ImageRefused(
        f"the {image.format} file has {found[0]} x {found[1]} pixels, the request says {image.width} x {image.height}"
    )


def _broken(image: Image, error: Exception) -> ImageRefused:
    """Describe an error of Pillow in one short line, without the address of the object that some name."""
    reason = str(error).partition("<")[0].strip().partition("\n")[0][:120] or type(error).__name__
    return ImageRefused(f"the file is broken, truncated or no {image.format} image: {reason}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return the sides of a WebP file from the header of its first chunk; (0, 0) if there is none. After RFC 9649."""
    kind, body = data[12:16], data[20:30]
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return 0, 0


def _rgb(picture: Pillow.Image) -> Pillow.Image:
    """Convert a picture to RGB."""
    if picture.mode in _16_BITS:
        values = np.asarray(picture)
        grey = (values >> 8).clip(0, 255).astype(np.uint8)
        if (clear := picture.info.get("transparency")) is not None:
            grey[values == clear] = 255
        return Pillow.fromarray(grey).convert("RGB")
    if "A" not in picture.getbands() and picture.info.get("transparency") is None:
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    out = Pillow.new("RGB", picture.size)
    for top in range(0, picture.height, STRIP):
        box = (0, top, picture.width, min(top + STRIP, picture.height))
        strip = picture.crop(box)
        strip.info = picture.info
        strip = strip.convert("RGBA")
        white = Pillow.new("RGBA", strip.size, (255, 255, 255, 255))
        out.paste(Pillow.alpha_composite(white, strip).convert("RGB"), box)
    return out
