"""Images in the engine: who shares what, and that tokens are those of a lone cold run whatever happens meanwhile."""

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.commands import ReadRows, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Rows
from protocol.request import Sampling
from protocol.scheduling import Urgency
from tests.workers.engine.harness.drafting import always
from tests.workers.engine.images.prompts import KINDS, Engine, cold, request, runner
from tests.workers.tier_gate import engine_with_tier, serve
from workers.engine.embeddings.image_rows import row_numbers
from workers.engine.images.patch_restorer import PatchRestorer
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.transfer.row_frames import refusal, rows_frame

CAT, DOG, MAP = (b"cat", 100, 60), (b"dog", 100, 60), (b"map", 250, 200)
"""Images of 8, 8 and 56 tokens."""
ASK = "Which animal is this, and what does it look at? "


def test_a_row_has_a_number_by_the_digest_of_its_image_and_its_place() -> None:
    numbers = row_numbers(b"key", 3)
    assert numbers == row_numbers(b"key", 4)[:3]
    assert len({*numbers, *row_numbers(b"other", 3)}) == 6
    assert all(-(1 << 62) - 1 < number < 0 for number in numbers)


@pytest.mark.parametrize("kind", KINDS)
def test_two_images_with_the_same_text_share_what_is_before_them_alone(kind: str) -> None:
    one, two = request(1, ASK, CAT, " Say it."), request(2, ASK, DOG, " Say it.")
    engine = Engine(runner(**KINDS[kind])).run(one).run(two)
    assert engine.ends[2].cached_tokens <= len(ASK)
    assert engine.tokens[2] == cold(two, **KINDS[kind]) != engine.tokens[1]
    assert engine.tower.begun == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_prompt_has_the_tokens_of_a_cold_one_and_encodes_nothing(kind: str) -> None:
    first = request(1, ASK, MAP, "And this one? ", CAT, " " * 60)
    engine = Engine(runner(**KINDS[kind])).run(first)
    assert engine.tower.begun == 2
    again = replace(first, stream=2)
    further = request(3, ASK, MAP, "And this one? ", CAT, " " * 60, "Which is larger? ", DOG, "?")
    engine.run(again).run(further)
    assert engine.tokens[2] == engine.tokens[1] == cold(first, **KINDS[kind])
    assert engine.ends[2].cached_tokens > len(ASK)
    assert engine.tokens[3] == cold(further, **KINDS[kind])
    assert engine.tower.begun == 3, "the rows of the first two are in the KV cache or in that of rows"


def test_rows_with_text_between_them_are_those_of_a_cold_prompt_in_any_chunks() -> None:
    """The image has 7 rows of 8 tokens, with a token of text behind each but the last one."""
    first = request(1, ASK, MAP, " Say it.", mrope=False, breaks=True)
    assert first.images is not None
    (image,) = first.images.images
    assert image.end - image.start == len(image.numbers) + 6
    assert [first.prompt[place] for place in image.places] == list(image.numbers)
    assert first.prompt[image.start + 8] == 10
    expected = cold(first, mrope=False)
    for chunks in ((3,), (9, 20)):
        assert cold(first, mrope=False, prefill_chunks=chunks) == expected
    engine = Engine(runner(mrope=False)).run(first).run(replace(first, stream=2))
    assert engine.tokens[2] == expected != cold(request(1, ASK, MAP, " Say it.", mrope=False), mrope=False)
    assert engine.tower.begun == 1
    wrong = list(first.prompt)
    wrong[image.start], wrong[image.start + 8] = wrong[image.start + 8], wrong[image.start]
    with pytest.raises(RequestRefused, match="does not have the rows of the image in their place"):
        Engine(runner(mrope=False)).submit(replace(first, prompt=tuple(wrong)))


def test_tenants_share_neither_kv_nor_rows() -> None:
    asked = [request(stream, ASK, CAT, tenant=tenant) for stream, tenant in ((1, "a"), (2, "b"))]
    engine = Engine().run(asked[0]).run(asked[1])
    assert engine.ends[2].cached_tokens == 0
    assert engine.tower.begun == 2
    assert Engine().run(*asked).tower.begun == 2


def test_those_that_wait_for_the_same_image_share_one_encoding() -> None:
    asked = [request(stream, f"{stream}: {ASK}", CAT, "!") for stream in (1, 2, 3)]
    engine = Engine().run(*asked)
    assert (engine.tower.begun, engine.engine.gauges().images_encoded) == (1, 1)
    assert engine.engine.gauges().image_cache_hits == 2
    assert [engine.tokens[each.stream] for each in asked] == [cold(each) for each in asked]


def test_decode_steps_go_on_while_an_image_is_encoded() -> None:
    """A part and a decode step take a second each, by a clock that they advance alone."""
    seconds = [0.0]
    device = runner(slots=2)
    tower, decode = device.vision, device.decode
    assert tower is not None

    def advancing(call: Any) -> Any:
        def advance(*given: Any) -> Any:
            seconds[0] += 1.0
            return call(*given)

        return advance

    tower.part = advancing(tower.part)  # type: ignore[method-assign]
    device.decode = advancing(decode)  # type: ignore[method-assign]
    engine = Engine(device, clock=lambda: seconds[0])
    engine.submit(request(1, "Go on.", max_tokens=40))
    engine.until(lambda: len(engine.tokens[1]) == 3)
    engine.submit(request(2, CAT, max_tokens=2))
    before = len(engine.tokens[1])
    engine.until(lambda: bool(engine.tokens[2]))
    assert tower.advanced == 4
    assert len(engine.tokens[1]) - before == tower.advanced + 1, "a token for each part, and one for the prompt"
    engine.until(lambda: engine.engine.idle)
    alone = Engine(device, clock=lambda: 0.0)
    alone.submit(request(3, DOG))
    alone.step()
    assert tower.advanced == 8, "an image is encoded in one step while none decodes"


def test_images_and_other_prompts_take_turns_while_others_decode() -> None:
    """A step is as long as a part or a prefill call and the decode rows, not as all three."""
    device = runner(slots=3, prefill_chunks=(16,))
    tower = device.vision
    assert tower is not None
    engine = Engine(device, clock=lambda: 0.0, step_tokens=16)
    engine.submit(request(1, "Go on.", max_tokens=60))
    engine.until(lambda: len(engine.tokens[1]) == 2)
    engine.submit(request(2, CAT, max_tokens=2), request(3, "x" * 100, max_tokens=2))
    steps = []
    while not engine.tokens[2] or not engine.tokens[3]:
        before = (tower.advanced, device.calls)
        engine.step()
        steps.append((tower.advanced - before[0], device.calls - before[1] - 1))  # but for the decode step
    assert all(not parts or not calls for parts, calls in steps), "also where an image is complete"
    assert steps[:6] in ([(1, 0), (0, 1)] * 3, [(0, 1), (1, 0)] * 3)


def test_the_next_image_is_that_of_the_most_urgent_with_the_fewest() -> None:
    many = request(1, *[(bytes([each]), 32, 32) for each in range(6)], "?", max_tokens=2)
    one = request(2, "x", CAT, "?", max_tokens=1)
    engine = Engine().submit(many, one)
    engine.until(lambda: 2 in engine.ends)
    assert engine.tower.begun <= 3, "not after the six of the other one"
    engine.until(lambda: engine.engine.idle)
    assert engine.tokens == {1: cold(many), 2: cold(one)}
    busy = Engine(clock=lambda: 0.0).submit(request(9, "Go on.", max_tokens=60))
    busy.until(lambda: len(busy.tokens[9]) == 2)
    busy.submit(many, replace(one, urgency=Urgency.of("high", 0)))
    busy.until(lambda: 2 in busy.ends)
    assert busy.tower.begun == 1, "a part in each step, first those of the urgent one"


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_cancel_ends_the_encoding_at_once_unless_another_waits(waiting: int) -> None:
    device = runner()
    engine = Engine(device, clock=lambda: 0.0).submit(request(9, "Go on.", max_tokens=60))
    engine.until(lambda: len(engine.tokens[9]) == 2)
    asked = [request(stream, "?" * stream, CAT) for stream in range(1, waiting + 1)]
    engine.submit(*asked)
    engine.step()
    assert engine.tower.open == 1
    engine.engine.cancel(1)
    assert engine.tower.open == waiting - 1
    engine.until(lambda: engine.engine.idle)
    assert (engine.tower.open, engine.tower.begun) == (0, 1)
    if waiting == 2:
        assert engine.tokens[2] == cold(asked[1])


@pytest.mark.parametrize(("bound", "encoded"), [(0, 4), (8 * 32 - 1, 4), (8 * 32, 3), (16 * 32, 2)])
def test_the_cache_of_rows_keeps_what_was_used_last_within_its_bound(bound: int, encoded: int) -> None:
    """Each image has 8 rows of 32 bytes. Different texts before them leave no KV to share."""
    engine = Engine(image_cache_bytes=bound)
    for stream, image in enumerate((CAT, DOG, DOG, CAT)):
        engine.run(request(stream, f"{stream}", image))
        assert engine.engine.gauges().image_cache_bytes <= bound
    assert engine.tower.begun == encoded


def test_a_prompt_keeps_its_rows_beyond_the_bound() -> None:
    engine = Engine(image_cache_bytes=0).submit(request(1, CAT, DOG, MAP, "?", max_tokens=2))
    engine.until(lambda: engine.tower.begun == 3 and not engine.tower.open)
    assert engine.tokens[1] == [] or engine.engine.gauges().image_cache_bytes == 0
    engine.until(lambda: engine.engine.idle)
    assert engine.tower.begun == 3
    assert engine.engine.gauges().image_cache_bytes == 0


def test_a_prompt_whose_image_is_being_encoded_waits_for_no_turn_any_more() -> None:
    seconds = [0.0]
    engine = Engine(clock=lambda: seconds[0]).submit(request(9, "Go on.", max_tokens=60))
    engine.until(lambda: len(engine.tokens[9]) == 2)
    begun, waiting = request(1, CAT, "?", queue_s=1.0), request(2, DOG, "?", queue_s=1.0)
    engine.submit(begun, waiting)
    engine.step()
    assert engine.tower.open == 1
    seconds[0] = 2.0
    engine.until(lambda: engine.engine.idle)
    assert {stream: each.code for stream, each in engine.failures.items()} == {2: ErrorCode.QUEUE_TIMEOUT}
    assert engine.tokens[1] == cold(begun)


class Broken:
    """A tower that fails with one image."""

    def __init__(self, engine: Engine, marked: EngineRequest, error: Exception) -> None:
        tower, image = engine.tower, marked.images
        assert image is not None
        begin, key = tower.begin, image.images[0].key

        def failing(patches: Any) -> Any:
            encoding = begin(patches)
            if patches.key == key:
                encoding.advance = self.fail
            return encoding

        tower.begin, self._error = failing, error

    def fail(self) -> bool:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code", "failed_steps"),
    [
        (ValueError("too odd"), ErrorCode.INVALID, 0),
        (MemoryError("no room"), ErrorCode.STEP, 1),
    ],
    ids=["refused", "device"],
)
def test_a_tower_that_fails_ends_those_that_wait_for_the_image_alone(
    error: Exception, code: ErrorCode, failed_steps: int
) -> None:
    bad = [request(1, "x", CAT), request(2, "yy", CAT)]
    good, text = request(3, "z", DOG), request(4, "Only text.")
    engine = Engine()
    Broken(engine, bad[0], error)
    engine.run(*bad, good, text)
    assert {stream: (each.code, each.field) for stream, each in engine.failures.items()} == {
        1: (code, "image[0]"),
        2: (code, "image[0]"),
    }
    assert str(error) in engine.failures[1].text
    assert (engine.tokens[3], engine.tokens[4]) == (cold(good), cold(text))
    assert engine.engine.gauges().steps_failed == failed_steps


def test_rows_that_are_not_finite_fail_their_request() -> None:
    bad, good = request(1, "x", CAT), request(2, "y", DOG)
    assert bad.images is not None
    patches = bad.images.images[0].patches
    assert patches is not None
    patches.values[0, 0] = np.nan
    engine = Engine().run(bad, good)
    assert (engine.failures[1].code, engine.failures[1].field) == (ErrorCode.NOT_FINITE, "image[0]")
    assert engine.tokens[2] == cold(good)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delivered", [1, 5])
def test_a_replayed_answer_goes_on_with_the_same_tokens(kind: str, delivered: int) -> None:
    asked = request(1, "See: ", MAP, " and ", CAT, ".", sampling=Sampling(temperature=1.0, seed=3), max_tokens=9)
    tokens = cold(asked, **KINDS[kind])
    resumed = replace(asked, resume=tuple(tokens[:delivered]))
    assert cold(resumed, **KINDS[kind]) == tokens[delivered:]


@pytest.mark.parametrize("kind", KINDS)
def test_random_schedules_have_the_tokens_of_lone_cold_runs(kind: str) -> None:
    """Requests with and without images in a cache that is too small for all: some are preempted, some cancelled."""
    randomness = random.Random(11)
    texts, pictures = ("See ", "What is it? ", "?" * 23), (CAT, DOG, MAP, (b"dot", 5, 5))
    engine = Engine(
        runner(**KINDS[kind], slots=3, context=256),
        kv_tokens=400,
        reserved_rows=4,
        image_cache_bytes=300,
        step_tokens=24,
    )
    asked, cancelled = [], set()
    for stream in range(24):
        parts = [randomness.choice((*texts, *pictures)) for _ in range(randomness.randrange(1, 5))]
        urgency = Urgency.of(randomness.choice(("low", "normal", "high")), 0)
        sampling = Sampling(temperature=randomness.choice((0.0, 1.0)), seed=stream)
        tenant = randomness.choice(("a", "b"))
        given = request(stream, *parts, sampling=sampling, urgency=urgency, tenant=tenant, max_tokens=30)
        asked.append(given)
        engine.submit(given)
        for _ in range(randomness.randrange(4)):
            engine.step()
        if stream % 6 == 5:
            cancelled.add(stream - 1)
            engine.engine.cancel(stream - 1)
    engine.until(lambda: engine.engine.idle)
    assert not engine.failures
    assert not engine.runner.violations
    assert engine.engine.gauges().preemptions > 0
    if engine.runner.capabilities.exact_rows:
        assert engine.engine.gauges().prefix_hits > 0
    for given in asked:
        expected = cold(replace(given, tenant=""), **KINDS[kind], context=256)
        got = engine.tokens[given.stream]
        assert got == (expected[: len(got)] if given.stream in cancelled else expected), given.stream


def test_drafted_answers_have_the_same_tokens() -> None:
    asked = request(1, "abab", MAP, "abababab", max_tokens=60)
    device = runner(alphabet=tuple(b"ab"), decode_rows=8)
    engine = Engine(device, speculator=always(device.capabilities)).run(asked)
    assert engine.tokens[1] == cold(asked, alphabet=tuple(b"ab"))
    assert engine.engine.gauges().accepted_tokens > 5


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "recurrent"])
def test_rows_of_a_prompt_with_images_are_restored_from_the_tier(kind: str, tmp_path: Path) -> None:
    asked = request(1, "Look: ", MAP, "and tell me what it shows, in a few words.", max_tokens=4)
    saving = engine_with_tier(runner(**KINDS[kind]), tmp_path)
    tokens, _ = serve(saving, asked)
    saving.close()
    device = runner(**KINDS[kind])
    restoring = engine_with_tier(device, tmp_path)
    again, cached = serve(restoring, asked)
    other, shared = serve(restoring, replace(asked, stream=2, tenant="b"))
    restoring.close()
    assert again == other == tokens == cold(asked, **KINDS[kind])
    assert (cached >= 64, shared) == (True, 0)
    assert device.vision is not None
    assert device.vision.begun == 1, "for the other tenant"
    assert not device.violations


def refused(engine: Engine, given: EngineRequest) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestRefused) as error:
        engine.engine.submit(given)
    return error.value.code, error.value.field


def test_what_images_exclude_is_refused_by_name() -> None:
    asked = request(1, ASK, CAT)
    assert refused(Engine(runner(images=False), wrapped=runner(images=False)), asked) == (
        ErrorCode.UNSUPPORTED,
        "image[0]",
    )
    able = Engine()
    assert refused(able, replace(asked, prompt_logprobs=True)) == (ErrorCode.UNSUPPORTED, "prompt_logprobs")
    assert refused(able, replace(asked, sparse=SparsePrompt())) == (ErrorCode.UNSUPPORTED, "sparse_prefill")
    assert refused(able, replace(asked, prompt=(1, *asked.prompt))) == (ErrorCode.INVALID, "image[0]")
    assert refused(able, replace(asked, prompt=(*asked.prompt, *asked.prompt[-8:]))) == (ErrorCode.INVALID, "image[0]")
    assert refused(Engine(runner(context=60)), request(1, ASK, CAT, "....")) == (ErrorCode.CONTEXT, "image[0]")


def test_an_image_that_must_not_be_split_fits_into_the_largest_chunk() -> None:
    assert len(cold(request(1, MAP, "?"), bidirectional_images=True, prefill_chunks=(16, 56))) == 6
    engine = Engine(runner(bidirectional_images=True, prefill_chunks=(16, 55)))
    assert refused(engine, request(1, MAP, "?")) == (ErrorCode.UNSUPPORTED, "image[0]")


def handed_over(source: Engine, target: Engine, tenant: str, rows: int, *, state: bool = False) -> int:
    """Give the first rows of stream 1 to another engine, in parts, and its recurrent state; return how many it has."""
    taken, at, size = 0, 0, 1
    while at < (size if state else rows):
        read = source.engine.read_rows(ReadRows(1, 7, 1, at, min(13, rows - at) if not state else 13, state))
        size, frame = read.state, rows_frame(read, source.engine.rows_format)
        assert isinstance(frame, Rows)
        held = read.held if state else 0
        given = WriteRows(2, 7, tenant, at, frame.tokens, frame.rows, frame.digest, held)
        assert refusal(given, target.engine.rows_format) is None
        taken = target.engine.write_rows(given).rows
        at += len(frame.rows) if state else len(frame.tokens)
    return taken


@pytest.mark.parametrize("kind", ["causal", "bidirectional", "recurrent"])
@pytest.mark.parametrize(("short", "begun"), [(0, 0), (40, 1)], ids=["whole", "within-image"])
def test_an_answer_goes_on_elsewhere_with_the_rows_of_its_images(kind: str, short: int, begun: int) -> None:
    asked = request(1, ASK, MAP, "?", max_tokens=20)
    source, target = Engine(runner(**KINDS[kind])).submit(asked), Engine(runner(**KINDS[kind]))
    source.until(lambda: len(source.tokens[1]) == 3)
    held = source.engine.read_rows(ReadRows(1, 7, 1, 0, 1)).held
    states = bool(source.runner.capabilities.state_bytes)
    assert handed_over(source, target, "", held - (0 if states else short)) == held - (0 if states else short)
    if states:
        handed_over(source, target, "", held, state=True)
    moved = replace(asked, resume=tuple(source.tokens[1]))
    assert target.run(moved).tokens[1] == cold(asked, **KINDS[kind])[3:]
    cached = target.ends[1].cached_tokens
    assert (target.tower.begun, cached > len(ASK)) == (
        (0 if states else begun),
        states or not begun or kind == "causal",
    )


def test_rows_of_images_from_elsewhere_are_those_of_their_tenant_alone() -> None:
    asked = request(1, ASK, MAP, "?", max_tokens=20, tenant="a")
    source, target = Engine().submit(asked), Engine()
    source.until(lambda: len(source.tokens[1]) == 3)
    assert handed_over(source, target, "a", 100) == 100
    assert target.run(replace(asked, stream=2, tenant="b")).ends[2].cached_tokens == 0
    target.run(replace(asked, stream=3)).run(request(4, ASK, (b"sea", 250, 200), "?", tenant="a"))
    assert (target.ends[3].cached_tokens, target.ends[4].cached_tokens) == (100, len(ASK))
    assert target.tokens[2] == target.tokens[3] == cold(asked) != target.tokens[4]


def test_patches_are_released_when_the_rows_are_computed_and_prepared_again_if_those_are_lost() -> None:
    """The second request preempts the first one and takes its rows, and no row of an image is cached."""
    asked = request(1, ASK, MAP, CAT, "?", max_tokens=60)
    assert asked.images is not None
    engine = Engine(runner(slots=1), image_cache_bytes=0, reserved_rows=4).submit(asked)
    assert all(image.patches is not None for image in asked.images.images)
    engine.until(lambda: engine.tower.begun == 2 and not engine.tower.open)
    assert [image.patches for image in asked.images.images] == [None, None]
    engine.until(lambda: len(engine.tokens[1]) == 5)
    urgent = request(2, "x" * 400, DOG, urgency=Urgency.of("high", 0), max_tokens=60)
    engine.run(urgent)
    assert engine.engine.gauges().preemptions == 1
    assert engine.tower.begun == 5, "both images once more"
    assert (engine.tokens[1], engine.tokens[2]) == (cold(asked), cold(urgent))
    assert [image.patches for image in asked.images.images] == [None, None]


def test_streams_go_on_while_patches_are_prepared_again() -> None:
    asked, others = request(1, ASK, CAT, max_tokens=4), request(2, "Go on.", max_tokens=40)
    assert asked.images is not None
    held, (image,) = asked.images.images[0].held, asked.images.images
    begin, began = threading.Event(), held.restore
    held.restore = lambda: (begin.wait(10.0), began())[1]  # type: ignore[method-assign]
    image.release()
    engine = Engine().submit(others)
    engine.until(lambda: len(engine.tokens[2]) == 2)
    engine.submit(asked)
    for _ in range(10):
        engine.step()
    assert (len(engine.tokens[2]), engine.tower.begun) == (12, 0)
    begin.set()
    engine.until(lambda: engine.engine.idle)
    assert (engine.tokens[1], engine.tokens[2]) == (cold(asked), cold(others))


def test_prompts_do_not_wait_for_patches_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(PatchRestorer, "wait", lambda self, seconds: waits.append(seconds))
    asked, other = request(1, CAT, max_tokens=4), request(2, "x" * 200, max_tokens=1)
    assert asked.images is not None
    (image,) = asked.images.images
    begin, began = threading.Event(), image.held.restore
    image.held.restore = lambda: (begin.wait(10.0), began())[1]  # type: ignore[method-assign]
    image.release()
    engine = Engine().submit(asked, other)
    engine.until(lambda: 2 in engine.ends)
    assert (waits, engine.tower.begun) == ([], 0)
    engine.step()
    assert waits, "nothing else is to be done"
    begin.set()
    engine.until(lambda: engine.engine.idle)
    assert (engine.tokens[1], engine.tokens[2]) == (cold(asked), cold(other))


def test_patches_that_another_encoding_made_needless_are_not_kept() -> None:
    """The rows of an image are computed for another sequence while its patches are prepared again."""
    asked, other = request(1, ASK, CAT, max_tokens=3), request(2, "Who? ", CAT, max_tokens=3)
    assert asked.images is not None
    (image,) = asked.images.images
    begin, began = threading.Event(), image.held.restore
    image.held.restore = lambda: (begin.wait(10.0), began())[1]  # type: ignore[method-assign]
    image.release()
    restorer = PatchRestorer()
    assert restorer.begin(image.held)
    Engine().run(other, asked)
    begin.set()
    restorer.close()
    assert image.patches is None
    assert restorer.begin(image.held) is False, "it has ended"
    image.held.expect()
    image.held.restore()
    assert image.patches is not None


@pytest.mark.parametrize("changed", [False, True], ids=["unreadable", "other-pixels"])
def test_an_image_that_cannot_be_prepared_again_ends_its_request_alone(changed: bool) -> None:
    asked, other = request(1, ASK, CAT), request(2, "Only text.")
    assert asked.images is not None
    (image,) = asked.images.images
    patches = image.patches
    assert patches is not None

    def again() -> Any:
        if changed:
            return [replace(patches, key=b"other")]
        raise OSError("gone")

    image.held._again = again
    image.release()
    engine = Engine().run(asked, other)
    assert {stream: (each.code, each.field) for stream, each in engine.failures.items()} == {
        1: (ErrorCode.STEP, "image[0]")
    }
    assert engine.tokens[2] == cold(other)
