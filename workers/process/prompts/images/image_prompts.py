"""Images of chats: prepares them for the vision tower, and finds their rows among the tokens of a prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from msgspec.structs import replace

from protocol.errors import ErrorCode
from protocol.request import ChatInput, Image
from workers.engine.images.held_patches import HeldPatches
from workers.engine.images.prompt_images import PlacedImage, PromptImages
from workers.process.prompts.images.image_source import ImageSource, PreparedSource
from workers.process.prompts.images.patch_memory import PatchMemory
from workers.process.prompts.images.recent_images import RECENT_BYTES, RecentImages
from workers.process.prompts.refusal import PromptCancelled, PromptRefused, unsupported
from workers.vision.image_refused import ImageRefused
from workers.vision.mrope import axes_of
from workers.vision.outline import ImageOutline
from workers.vision.patches import ImagePatches

FLOAT_BYTES = 4
RETRY_S = 1


@dataclass(frozen=True)
class ChatImages:
    """The images of a chat, in the order of their places."""

    source: ImageSource
    placed: tuple[tuple[Image, ImageOutline], ...]
    held: tuple[HeldPatches, ...] = ()
    """The patches of each; none for a chat whose tokens are counted."""

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts that replace the placeholders."""
        return tuple(outline.text for _, outline in self.placed)

    def starts(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Return where the rows of each image begin among the tokens of a prompt, or those of each of its tiles.

        Raises `PromptRefused` for a prompt with other image tokens than those of the images: a message has the text of
        one, which the tokenizer takes for it.
        """
        places = [at for at, token in enumerate(tokens) if token == self.source.image_token]
        found: list[tuple[int, ...]] = []
        used = 0
        for image, outline in self.placed:
            starts = []
            for offsets in outline.parts:
                run = places[used : used + len(offsets)]
                if [place - run[0] for place in run] != list(offsets):
                    raise _other_tokens(image)
                starts.append(run[0])
                used += len(offsets)
            found.append(tuple(starts))
        if used != len(places):
            raise _other_tokens(self.placed[-1][0])
        return found

    def prompt(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], PromptImages]:
        """Return the tokens with the numbers of rows in place of image tokens, and the images. Raises as `starts`."""
        images = tuple(
            PlacedImage(start, held, image.field, part)
            for starts, held, (image, _) in zip(self.starts(tokens), self.held, self.placed, strict=True)
            for part, start in enumerate(starts)
        )
        numbered = list(tokens)
        for placed in images:
            for place, number in zip(placed.places, placed.numbers, strict=True):
                numbered[place] = number
        if not self.source.config.mrope:
            return tuple(numbered), PromptImages(images)
        axes, answer = axes_of(tokens, [(each.start, each.patches) for each in images if each.patches is not None])
        return tuple(numbered), PromptImages(images, axes, answer)


class ImagePrompts:
    """Prepares the images of chats, for one model. Used by one thread at a time."""

    def __init__(
        self,
        source: ImageSource | None,
        context: int,
        memory: PatchMemory | None = None,
        recent_bytes: int = RECENT_BYTES,
    ) -> None:
        """Without a `source` images are refused. An image of more patches than the tower takes, or whose rows cannot
        fit into `context` tokens, is refused before it is decoded. The patches of the last images are kept, up to
        `recent_bytes`."""
        self._source = source
        self._context = context
        self._memory = memory or PatchMemory()
        self._recent = RecentImages(recent_bytes)

    def outline(self, source: ChatInput) -> ChatImages | None:
        """Return what the images of a chat become in its prompt, of which pixels are not decoded; None if it has none.
        Raises `PromptRefused` with the field of the image that cannot be used by its header."""
        if (images := self._checked(source)) is None:
            return None
        order = _order(source)
        source = _among(images, source, order)
        outlines = self._outlines(images, source, order)
        return ChatImages(images, tuple((source.images[index], outlines[index]) for index in order))

    def prepare(self, source: ChatInput, wanted: Callable[[], bool], tenant: str | None = None) -> ChatImages | None:
        """Return the images of a chat; None if it has none. Those of a `tenant` are kept for its next requests.

        Raises `PromptRefused` with the field of the image that cannot be used, and `PromptCancelled` between two images
        if the chat is not `wanted` any more.
        """
        if (images := self._checked(source)) is None:
            return None
        order = _order(source)
        source = _among(images, source, order)
        outlines = self._outlines(images, source, order)
        self._check_memory(images, source, order, outlines)
        held: dict[int, HeldPatches] = {}
        for index in order:
            if index not in held:
                if not wanted():
                    raise PromptCancelled
                held[index] = self._held(images, source, index, tenant)
        placed = tuple((source.images[index], outlines[index]) for index in order)
        return ChatImages(images, placed, tuple(held[index] for index in order))

    def _checked(self, source: ChatInput) -> ImageSource | None:
        if not source.images and not any(message.images for message in source.messages):
            return None
        if problem := source.image_problem:
            field = source.images[0].field if source.images else "messages"
            raise PromptRefused(ErrorCode.INVALID, problem, field)
        if self._source is None:
            raise unsupported("the model takes no images: leave them out, or ask a model that does", _field(source, 0))
        return self._source

    def _outlines(self, images: ImageSource, source: ChatInput, order: Sequence[int]) -> dict[int, ImageOutline]:
        rows = 0
        outlines: dict[int, ImageOutline] = {}  # an image that has several places is prepared once
        for index in order:
            if index not in outlines:
                try:
                    outlines[index] = images.outline(source.images[index])
                except ImageRefused as error:
                    raise PromptRefused(ErrorCode.INVALID, str(error), _field(source, index)) from error
                self._check_patches(images, source, index, outlines[index])
            rows += outlines[index].rows
            if rows >= self._context:
                text = f"the images up to this one take {rows} tokens, which leave no room in {self._context}"
                raise PromptRefused(ErrorCode.CONTEXT, text, _field(source, index))
        return outlines

    def _check_patches(self, images: ImageSource, source: ChatInput, index: int, outline: ImageOutline) -> None:
        patches = outline.largest * images.config.group
        if images.max_patches is not None and patches > images.max_patches:
            text = f"an image of {patches} patches, the model takes {images.max_patches} on its device: make it smaller"
            raise PromptRefused(ErrorCode.INVALID, text, _field(source, index))

    def _check_memory(
        self, images: ImageSource, source: ChatInput, order: Sequence[int], outlines: Mapping[int, ImageOutline]
    ) -> None:
        config = images.config
        made = sum(outline.made for outline in outlines.values())
        size = made * config.group * config.patch_values * FLOAT_BYTES
        size += sum(len(source.images[index].data) for index in outlines)
        if not self._memory.fits(size):
            self._recent.clear()
        if not self._memory.fits(size):
            text = f"the images take {size} bytes beside those of other requests, {self._memory.max_bytes} are at most"
            raise PromptRefused(ErrorCode.OVERLOADED, text, _field(source, order[0]), RETRY_S)

    def _held(self, images: ImageSource, source: ChatInput, index: int, tenant: str | None) -> HeldPatches:
        """Return the patches of an image, which keep its file: they are made of it again if its rows are lost."""
        image = source.images[index]
        held = HeldPatches(self._prepared(images, source, index, tenant).parts, partial(self._parts, images, image))
        self._memory.hold(held, len(image.data))
        return held

    def _prepared(self, images: ImageSource, source: ChatInput, index: int, tenant: str | None) -> PreparedSource:
        image = source.images[index]
        if tenant is not None and (known := self._recent.find(tenant, image)) is not None:
            return known
        try:
            prepared = images.prepare(image)
        except ImageRefused as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), _field(source, index)) from error
        self._count(prepared)
        if tenant is not None:
            self._recent.add(tenant, image, prepared)
        return prepared

    def _parts(self, images: ImageSource, image: Image) -> tuple[ImagePatches, ...]:
        """Prepare an image once more, on any thread."""
        prepared = images.prepare(image)
        self._count(prepared)
        return prepared.parts

    def _count(self, prepared: PreparedSource) -> None:
        for part in prepared.parts:
            self._memory.hold(part.values, part.values.nbytes)


def _order(source: ChatInput) -> list[int]:
    """Return the image of each place."""
    return [place.image for message in source.messages for place in message.images]


def _among(images: ImageSource, source: ChatInput, order: Sequence[int]) -> ChatInput:
    """Return a chat with its images as they are prepared beside each other."""
    return replace(source, images=images.among(source.images, len(order)))


def _field(source: ChatInput, index: int) -> str:
    return source.images[index].field or "messages"


def _other_tokens(image: Image) -> PromptRefused:
    text = "the prompt has other image tokens than those of its images: leave the text of image tokens out of messages"
    field = image.field or "messages"
    return PromptRefused(ErrorCode.INVALID, text, field)
