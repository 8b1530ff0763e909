"""Prompts with images for the scripted runner, as the prompt builder makes them, and engines that count."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from protocol.request import Image
from workers.engine.engine import BatchEngine
from workers.engine.images.held_patches import HeldPatches
from workers.engine.images.prompt_images import PlacedImage, PromptImages
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.step_result import SequenceEnd, SequenceFailure
from workers.scripted.images import ScriptedImageProcessor
from workers.scripted.runner import ScriptedRunner
from workers.vision.mrope import axes_of
from workers.vision.patches import ImagePatches

KINDS: dict[str, dict[str, Any]] = {
    "causal": {},
    "bidirectional": {"bidirectional_images": True},
    "chunks": {"exact_rows": False},
    "chunks-bidirectional": {"exact_rows": False, "bidirectional_images": True},
    "recurrent": {"state_bytes": 16},
}
"""Runners that differ in what they need of chunks."""
Part = str | tuple[bytes, int, int]
"""A text, or the content, width and height of an image."""


def request(stream: int, *parts: Part, mrope: bool = True, breaks: bool = False, **fields: Any) -> EngineRequest:
    """A request with these parts. The image at index i has the field `image[i]`. With `breaks` there is a token of text
    between two rows of an image's tokens."""
    processor, tokens, images = ScriptedImageProcessor(), list[int](), list[PlacedImage]()
    patches: list[ImagePatches] = []
    for part in parts:
        if isinstance(part, str):
            tokens += part.encode()
            continue
        data, width, height = part
        held = _held(processor, Image("png", width, height, b"\x89PNG" + data), int(breaks))
        (shown,) = (held.part(at) for at in range(len(held.keys)))
        assert shown is not None
        patches.append(shown)
        images.append(image := PlacedImage(len(tokens), held, f"image[{len(images)}]"))
        tokens += [10] * (image.end - image.start)
        for place, number in zip(image.places, image.numbers, strict=True):
            tokens[place] = number
    placed = None
    if images:
        axes, answer = (
            axes_of(tokens, list(zip((each.start for each in images), patches, strict=True))) if mrope else (None, None)
        )
        placed = PromptImages(tuple(images), axes, answer)
    return EngineRequest(stream, tuple(tokens), **{"max_tokens": 6} | fields, images=placed)


def _held(processor: ScriptedImageProcessor, file: Image, breaks: int) -> HeldPatches:
    def prepare() -> list[ImagePatches]:
        return [replace(part, breaks=breaks) for part in processor.prepare(file).parts]

    return HeldPatches(prepare(), prepare)


def runner(**options: Any) -> ScriptedRunner:
    defaults: dict[str, Any] = {"images": True, "mrope": True, "slots": 4, "context": 512, "prefill_chunks": (16, 64)}
    return ScriptedRunner(**defaults | options)


class Engine:
    """An engine with what it has generated."""

    def __init__(self, device: ScriptedRunner | None = None, wrapped: Any = None, **options: Any) -> None:
        self.runner = device or runner()
        defaults: dict[str, Any] = {"max_queue": 64, "step_tokens": 64, "state_cache_bytes": 1 << 20}
        defaults["prefixes"] = PrefixPolicy(min_tokens=1)
        self.engine = BatchEngine(wrapped or self.runner, **defaults | options)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, SequenceEnd] = {}
        self.failures: dict[int, SequenceFailure] = {}

    @property
    def tower(self) -> Any:
        assert self.runner.vision is not None
        return self.runner.vision

    def submit(self, *requests: EngineRequest) -> "Engine":
        for each in requests:
            self.engine.submit(each)
            self.tokens[each.stream] = []
        return self

    def step(self) -> None:
        result = self.engine.step()
        for token in result.tokens:
            self.tokens[token.stream].append(token.token)
        self.ends |= {end.stream: end for end in result.ends}
        self.failures |= {failure.stream: failure for failure in result.failures}

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.engine.idle
            self.step()

    def run(self, *requests: EngineRequest) -> "Engine":
        self.submit(*requests)
        self.until(lambda: self.engine.idle)
        assert not self.runner.violations
        assert self.tower.open == 0
        return self


def cold(asked: EngineRequest, **kind: Any) -> list[int]:
    """The tokens of a request alone on a new engine."""
    return Engine(runner(**kind)).run(asked).tokens[asked.stream]
