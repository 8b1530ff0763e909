"""The images of a request as its body has them: in base64, or by a URL."""

import re
from dataclasses import dataclass
from typing import Literal

from gateway.errors import RequestError, invalid
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_NAME
from protocol.errors import ErrorCode
from protocol.request import ImageDetail, ImagePlace

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"})
TAKEN = "PNG, JPEG, WebP or GIF"
MAX_URL = 4096
_DATA = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_MAX_DATA_HEAD = 256
MAX_BASE64 = 4 * -(-MAX_IMAGE_BYTES // 3) * 33 // 32
"""Characters of all images in base64, with a line break in every line."""


@dataclass(frozen=True, slots=True)
class GivenImage:
    """One image of a request."""

    field: str
    """The path of the request field that has it."""
    kind: Literal["base64", "url"]
    text: str
    """The file in base64, from `begin` on, or the URL."""
    begin: int = 0
    detail: ImageDetail = "auto"


class GivenImages:
    """Collects the images of a request in the order in which they come. Synchronous: nothing is decoded yet."""

    def __init__(self) -> None:
        self._found: list[GivenImage] = []
        self._characters = 0

    @property
    def found(self) -> tuple[GivenImage, ...]:
        """The images so far."""
        return tuple(self._found)

    def add_url(self, url: str, field: str, detail: ImageDetail = "auto") -> int:
        """Add an image by its URL, which may be a data URL. Returns its index. Raises `RequestError`."""
        scheme = url[:5].lower()
        if scheme == "data:":
            return self._add_data(url, field, detail)
        if not scheme.startswith("http"):
            text = f"`{field}` takes a data URL (data:image/png;base64,...) or a URL of http or https"
            raise invalid(field, text)
        if len(url) > MAX_URL:
            raise invalid(field, f"`{field}` has a URL of over {MAX_URL} characters")
        return self._add(GivenImage(field, "url", url, detail=detail))

    def add_base64(self, data: str, field: str, media_type: str | None = None) -> int:
        """Add an image in base64, of this declared type. Returns its index. Raises `RequestError`."""
        if media_type is not None:
            check_media_type(media_type, field)
        return self._add_encoded(GivenImage(field, "base64", data))

    def _add_data(self, url: str, field: str, detail: ImageDetail) -> int:
        head = _DATA.match(url, 0, _MAX_DATA_HEAD)
        if head is None or not head[2].lower().endswith(";base64"):
            text = f"`{field}` is not a data URL in base64, such as data:image/png;base64,iVBORw0KGgo="
            raise invalid(field, text)
        check_media_type(head[1], field)
        return self._add_encoded(GivenImage(field, "base64", url, head.end(), detail))

    def _add_encoded(self, source: GivenImage) -> int:
        size = len(source.text) - source.begin
        if not size:
            raise invalid(source.field, f"`{source.field}` has no data")
        self._characters += size
        if self._characters > MAX_BASE64:
            raise too_large(source.field)
        return self._add(source)

    def _add(self, source: GivenImage) -> int:
        if len(self._found) == MAX_IMAGES:
            field = source.field
            raise invalid(field, f"`{field}` is one of over {MAX_IMAGES} images; a request may have {MAX_IMAGES}")
        self._found.append(source)
        return len(self._found) - 1


class MixedContent:
    """The text of a message, and the places of images within it. Texts that follow each other are lines; beside an
    image nothing is added, as in chat templates."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._places: list[ImagePlace] = []
        self._follows_text = False
        self.size = 0
        """Characters so far."""

    def add_text(self, text: str) -> None:
        """Add a text; an empty one is left out."""
        if not text:
            return
        if self._follows_text:
            self._pieces.append("\n")
            self.size += 1
        self._pieces.append(text)
        self.size += len(text)
        self._follows_text = True

    def add_image(self, index: int) -> None:
        """Add an image by its index in the request."""
        self._places.append(ImagePlace(index, self.size))
        self._follows_text = False

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._pieces)

    @property
    def places(self) -> tuple[ImagePlace, ...]:
        """The places of its images."""
        return tuple(self._places)


def check_media_type(declared: str, field: str) -> None:
    """Refuse a declared type other than those of images. Of the four, the first bytes of the file decide. Raises
    `RequestError`."""
    if declared.strip().lower() not in MEDIA_TYPES:
        text = f"`{field}` is of the type {declared[:MAX_NAME]!r}; images are {TAKEN} files"
        raise invalid(field, text, ErrorCode.UNSUPPORTED)


def too_large(field: str) -> RequestError:
    """The error for images with too many bytes."""
    return invalid(field, f"`{field}`: the images of a request have over {MAX_IMAGE_BYTES} bytes together")
