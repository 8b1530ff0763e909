"""Gate of images in tiles for any runner: whatever happens while tiles are computed, tokens are those of an undisturbed
run."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol.commands import Submit
from protocol.request import ChatInput, ImagePlace, Limits, Message, Sampling
from tests.reference.vision.test_vision import as_file, picture
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.faults.faulty_runner import FaultyRunner
from workers.faults.plan import Fault
from workers.process.prompts.prompt_builder import PromptBuilder
from workers.text.checkpoint_tokenizer import CheckpointTokenizer
from workers.vision.processor import ImageProcessor

SIZES = ((60, 44), (30, 80))
COUNT = 6


class WorkerDied(BaseException):
    """Raised in place of the end of a process."""


class Served:
    """A new engine over a runner, in whose steps one part of an image is computed."""

    def __init__(self, runner: Runner, wrapped: Runner | None = None) -> None:
        ticks = itertools.count()
        self.engine = BatchEngine(
            wrapped or runner,
            max_queue=16,
            step_tokens=64,
            prefixes=PrefixPolicy(enabled=False),
            image_cache_bytes=0,
            clock=lambda: float(next(ticks)),
        )
        self.tokens: dict[int, list[int]] = {}
        self.failed: list[int] = []

    def submit(self, *requests: EngineRequest) -> "Served":
        for request in requests:
            self.engine.submit(request)
            self.tokens[request.stream] = []
        return self

    def step(self) -> None:
        result = self.engine.step()
        for token in result.tokens:
            self.tokens[token.stream].append(token.token)
        self.failed += [failure.stream for failure in result.failures]

    def run(self) -> "Served":
        while not self.engine.idle:
            self.step()
        return self


class TiledPrompts:
    """Requests about images in tiles, of one checkpoint."""

    def __init__(self, path: Path) -> None:
        own = ImageProcessor.of(path)
        assert own is not None
        self._builder = PromptBuilder(CheckpointTokenizer.from_dir(path), 512, images=own)

    def about(self, stream: int, image: int | None, resume: tuple[int, ...] = ()) -> EngineRequest:
        """A request about an image, or with text alone."""
        text = f"What is in picture {image}?"
        images = () if image is None else (as_file(picture(*SIZES[image])),)
        places = () if image is None else (ImagePlace(0, 5),)
        chat = ChatInput((Message("user", text, images=places),), images=images)
        built = self._builder.build(Submit(stream, "r", chat, Sampling(), Limits(max_tokens=COUNT), ()))
        return EngineRequest(stream, built.tokens, max_tokens=COUNT, images=built.images, resume=resume)


def run_tiled_gate(runner: Runner, path: Path, another: Callable[[], Runner]) -> int:
    """Run the gate, and return the parts of an image. `another` makes a second runner of the checkpoint, and closes
    it later."""
    prompts = TiledPrompts(path)
    kinds: list[int | None] = [0, 1, None]
    alone = {kind: Served(runner).submit(prompts.about(1, kind)).run().tokens[1] for kind in kinds}
    assert all(len(tokens) == COUNT for tokens in alone.values())
    assert alone[0] != alone[1], "the images matter"
    parts = _parts(runner, prompts)
    assert parts > 3
    for part in (1, parts // 2, parts - 1):
        _cancel(runner, prompts, part, alone)
        _fail(runner, prompts, part, alone)
    _die(runner, another(), prompts, parts // 2, alone)
    _batch(runner, prompts, alone)
    return parts


def _parts(runner: Runner, prompts: TiledPrompts) -> int:
    request, vision = prompts.about(1, 0), runner.vision
    assert request.images is not None
    assert vision is not None
    total = 0
    for image in request.images.images:
        assert image.patches is not None
        encoding = vision.begin(image.patches)
        total += encoding.parts
        encoding.close()
    return total


def _cancel(runner: Runner, prompts: TiledPrompts, part: int, alone: dict[int | None, list[int]]) -> None:
    """Cancel a request after so many parts of its image; another one waits for the same image, and one has none."""
    for others in ((None,), (0, None)):
        served = Served(runner).submit(prompts.about(1, 0))
        for _ in range(part):
            served.step()
        served.submit(*(prompts.about(2 + number, kind) for number, kind in enumerate(others)))
        assert served.engine.cancel(1) is not None
        served.run()
        assert served.tokens[1] == []
        for number, kind in enumerate(others):
            assert served.tokens[2 + number] == alone[kind], (part, kind)
        assert served.submit(prompts.about(9, 0)).run().tokens[9] == alone[0], part
        assert runner.vision is not None
        assert runner.vision.memory()["vision_buffers"] == 0


def _fail(runner: Runner, prompts: TiledPrompts, part: int, alone: dict[int | None, list[int]]) -> None:
    """A part raises: the request fails, and the next one is computed as ever."""
    served = Served(runner, FaultyRunner(runner, [Fault("raise", part)])).submit(prompts.about(1, 0)).run()
    assert served.failed == [1], part
    assert served.submit(prompts.about(2, 0), prompts.about(3, None)).run().tokens[2] == alone[0]
    assert served.tokens[3] == alone[None]


def _die(runner: Runner, other: Runner, prompts: TiledPrompts, part: int, alone: dict[int | None, list[int]]) -> None:
    """A worker dies within an image, before the answer began and again when half of it was there: another one takes the
    request up."""

    def die(fault: Fault, call: int) -> None:
        raise WorkerDied

    acts: dict[str, Any] = {"kill": die}
    for given in ((), tuple(alone[0][: COUNT // 2])):
        dying = Served(runner, FaultyRunner(runner, [Fault("kill", part)], acts)).submit(prompts.about(1, 0, given))
        try:
            dying.run()
        except WorkerDied:
            assert dying.tokens[1] == [], "before its image is complete it has no answer"
            dying.engine.cancel(1)  # a process that ends frees what its image holds of the device
        else:
            raise AssertionError("the fault is within the image")
        taken_up = Served(other).submit(prompts.about(1, 0, given)).run().tokens[1]
        assert [*given, *taken_up] == alone[0]


def _batch(runner: Runner, prompts: TiledPrompts, alone: dict[int | None, list[int]]) -> None:
    """Requests about several images and with text alone, together."""
    kinds = (None, 0, 1, None, 0)
    served = Served(runner).submit(*(prompts.about(1 + number, kind) for number, kind in enumerate(kinds))).run()
    for number, kind in enumerate(kinds):
        assert served.tokens[1 + number] == alone[kind], (number, kind)
