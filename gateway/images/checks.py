"""Makes images of the protocol out of files, whose headers are checked before anybody decodes pixels."""

from gateway.errors import invalid
from gateway.images.header import HeaderInvalid, read_header
from protocol.bounds import MAX_IMAGE_PIXELS, MAX_IMAGE_SIDE, MAX_NAME
from protocol.request import Image, ImageDetail


def checked_image(data: bytes, field: str, detail: ImageDetail, digest: bytes) -> Image:
    """Return the image of a file. Raises `RequestError` naming `field` for a header that is not valid, and for sides or
    pixels over their bounds."""
    try:
        header = read_header(data)
    except HeaderInvalid as error:
        raise invalid(field, f"`{field}` is not an image: {error}") from error
    width, height = header.width, header.height
    if not width or not height:
        raise invalid(field, f"`{field}` is an image of {width} x {height} pixels")
    if max(width, height) > MAX_IMAGE_SIDE:
        text = f"`{field}` is an image of {width} x {height} pixels; a side may have {MAX_IMAGE_SIDE}"
        raise invalid(field, text)
    if width * height > MAX_IMAGE_PIXELS:
        text = f"`{field}` is an image of {width} x {height} pixels; {MAX_IMAGE_PIXELS} are allowed"
        raise invalid(field, text)
    return Image(header.format, width, height, data, detail, field[:MAX_NAME], digest)
