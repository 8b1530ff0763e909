"""Image files that a person names."""

from hashlib import blake2b
from pathlib import Path

from gateway.errors import RequestError
from gateway.images.checks import checked_image
from protocol.bounds import IMAGE_DIGEST_BYTES, MAX_IMAGE_BYTES
from protocol.request import Image


class ImageFileInvalid(Exception):
    """Raised for a file that is no image, or too large; the message says why."""


def read_image(path: str) -> Image:
    """Read and check an image file. Raises `ImageFileInvalid`."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
        if len(data) > MAX_IMAGE_BYTES:
            raise ImageFileInvalid(f"{path}: the file has over {MAX_IMAGE_BYTES} bytes")
        return checked_image(data, path, "auto", blake2b(data, digest_size=IMAGE_DIGEST_BYTES).digest())
    except RequestError as error:
        raise ImageFileInvalid(error.text.replace("`", "")) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ImageFileInvalid(f"{path}: {getattr(error, 'strerror', None) or error}") from error
