"""Images of chats: prepares them for the vision tower, and finds their rows among the tokens of a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from protocol.errors import ErrorCode
from protocol.request import ChatInput, Image
from workers.engine.images.prompt_images import PlacedImage, PromptImages
from workers.process.prompts.images.image_source import ImageSource, PreparedSource
from workers.process.prompts.images.patch_memory import PatchMemory
from workers.process.prompts.images.recent_images import RECENT_BYTES, RecentImages
from workers.process.prompts.refusal import PromptCancelled, PromptRefused, unsupported
from workers.vision.image_refused import ImageRefused
from workers.vision.mrope import axes_of

FLOAT_BYTES = 4
RETRY_S = 1


@dataclass(frozen=True)
class ChatImages:
    """The prepared images of a chat, in the order of their places."""

    source: ImageSource
    placed: tuple[tuple[Image, PreparedSource], ...]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts that replace the placeholders."""
        return tuple(prepared.text for _, prepared in self.placed)

    def prompt(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], PromptImages]:
        """Return the tokens with the numbers of rows in place of image tokens, and the images.

        Raises `PromptRefused` for a prompt with other image tokens than those of the images: a message has the text of
        one, which the tokenizer takes for it.
        """
        images: list[PlacedImage] = []
        places = [at for at, token in enumerate(tokens) if token == self.source.image_token]
        used = 0
        for image, prepared in self.placed:
            for patches in prepared.parts:
                run = places[used : used + patches.count]
                offsets = patches.offsets
                if [place - run[0] for place in run] != list(offsets):
                    raise _other_tokens(image)
                apart = None if isinstance(offsets, range) else tuple(offsets)
                images.append(PlacedImage(run[0], patches, image.field, apart))
                used += patches.count
        if used != len(places):
            raise _other_tokens(self.placed[-1][0])
        numbered = list(tokens)
        for placed in images:
            for place, number in zip(placed.places, placed.numbers, strict=True):
                numbered[place] = number
        if not self.source.config.mrope:
            return tuple(numbered), PromptImages(tuple(images))
        axes, answer = axes_of(tokens, [(placed.start, placed.patches) for placed in images])
        return tuple(numbered), PromptImages(tuple(images), axes, answer)


class ImagePrompts:
    """Prepares the images of chats, for one model. Used by one thread at a time."""

    def __init__(
        self,
        source: ImageSource | None,
        context: int,
        memory: PatchMemory | None = None,
        recent_bytes: int = RECENT_BYTES,
    ) -> None:
        """Without a `source` images are refused. An image whose rows cannot fit into `context` tokens is refused before
        it is decoded. The patches of the last images are kept, up to `recent_bytes`."""
        self._source = source
        self._context = context
        self._memory = memory or PatchMemory()
        self._recent = RecentImages(recent_bytes)

    def prepare(self, source: ChatInput, wanted: Callable[[], bool], tenant: str | None = None) -> ChatImages | None:
        """Return the images of a chat; None if it has none. Those of a `tenant` are kept for its next requests.

        Raises `PromptRefused` with the field of the image that cannot be used, and `PromptCancelled` between two images
        if the chat is not `wanted` any more.
        """
        if not source.images and not any(message.images for message in source.messages):
            return None
        if problem := source.image_problem:
            field = source.images[0].field if source.images else "messages"
            raise PromptRefused(ErrorCode.INVALID, problem, field)
        if self._source is None:
            raise unsupported("the model takes no images: leave them out, or ask a model that does", _field(source, 0))
        order = [place.image for message in source.messages for place in message.images]
        self._check_sizes(self._source, source, order)
        prepared: dict[int, PreparedSource] = {}
        for index in order:
            if index not in prepared:
                if not wanted():
                    raise PromptCancelled
                prepared[index] = self._prepared(self._source, source, index, tenant)
        return ChatImages(self._source, tuple((source.images[index], prepared[index]) for index in order))

    def _check_sizes(self, images: ImageSource, source: ChatInput, order: Sequence[int]) -> None:
        rows, config = 0, images.config
        counts: dict[int, int] = {}  # an image that has several places is prepared once
        for index in order:
            if index not in counts:
                try:
                    counts[index] = images.tokens_of(source.images[index])
                except ImageRefused as error:
                    raise PromptRefused(ErrorCode.INVALID, str(error), _field(source, index)) from error
            rows += counts[index]
            if rows >= self._context:
                text = f"the images up to this one take {rows} tokens, which leave no room in {self._context}"
                raise PromptRefused(ErrorCode.CONTEXT, text, _field(source, index))
        size = sum(counts.values()) * config.group * config.patch_values * FLOAT_BYTES
        if not self._memory.fits(size):
            self._recent.clear()
        if not self._memory.fits(size):
            text = f"the images take {size} bytes beside those of other requests, {self._memory.max_bytes} are at most"
            raise PromptRefused(ErrorCode.OVERLOADED, text, _field(source, order[0]), RETRY_S)

    def _prepared(self, images: ImageSource, source: ChatInput, index: int, tenant: str | None) -> PreparedSource:
        image = source.images[index]
        if tenant is not None and (known := self._recent.find(tenant, image)) is not None:
            return known
        try:
            prepared = images.prepare(image)
        except ImageRefused as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), _field(source, index)) from error
        for part in prepared.parts:
            self._memory.hold(part.values)
        if tenant is not None:
            self._recent.add(tenant, image, prepared)
        return prepared


def _field(source: ChatInput, index: int) -> str:
    return source.images[index].field or "messages"


def _other_tokens(image: Image) -> PromptRefused:
    text = "the prompt has other image tokens than those of its images: leave the text of image tokens out of messages"
    field = image.field or "messages"
    return PromptRefused(ErrorCode.INVALID, text, field)
