"""Rows of embeddings in prompts: what is refused, and what counts their numbers as tokens and what does not."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.commands import ReadRows
from protocol.errors import ErrorCode
from protocol.request import Sampling
from workers.engine.embeddings.prompt_embeddings import InvalidEmbeddings, PromptEmbeddings, has_rows, without_rows
from workers.engine.engine import BatchEngine
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Chunk, check_chunks
from workers.prefix_store.block import RowBlock, extend
from workers.scripted.runner import ScriptedRunner

WIDTH = 4


def rows(*values: float) -> PromptEmbeddings:
    return PromptEmbeddings(np.array([[value] * WIDTH for value in values], np.float32))


def engine(context: int = 4096) -> BatchEngine:
    return BatchEngine(ScriptedRunner(embedding_width=WIDTH, context=context), max_queue=4, step_tokens=64)


def request(embeddings: PromptEmbeddings, before: Sequence[int] = (), **fields: object) -> EngineRequest:
    return EngineRequest(1, (*before, *embeddings.ids), max_tokens=4, embeddings=embeddings, **fields)  # type: ignore[arg-type]


def generate(engine: BatchEngine, given: EngineRequest) -> list[int]:
    engine.submit(given)
    tokens: list[int] = []
    while not engine.idle:
        step = engine.step()
        assert not step.failures
        tokens += [token.token for token in step.tokens]
    return tokens


def test_equal_rows_have_equal_numbers_and_no_number_is_a_token() -> None:
    one, two, again = rows(1.0, 2.0, 1.0).ids
    assert one == again != two
    assert all(-(1 << 63) < number < 0 for number in (one, two))
    assert (has_rows((3, one)), has_rows((3,)), has_rows(())) == (True, False, False)
    assert without_rows((one, 3, two, 0)) == (3, 0)


def test_rows_are_put_where_their_numbers_are() -> None:
    given = rows(1.0, 2.0)
    ids, out = np.zeros(3, np.int32), np.zeros((3, WIDTH + 1), np.float32)
    given.put((given.ids[1], 7, given.ids[0]), ids, out)
    assert ids.tolist() == [-1, 7, -1]
    assert out[:, :WIDTH].max(axis=1).tolist() == [2.0, 0.0, 1.0]
    assert not out[:, WIDTH:].any(), "the padding of a model's width stays zero"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.zeros((2, 0), np.float32), "count, width"),
        (np.zeros((0, WIDTH), np.float32), "count, width"),
        (np.zeros(WIDTH, np.float32), "count, width"),
        (np.zeros((1, WIDTH), np.float64), "not float64"),
        (np.array([[0.0, np.inf]], np.float32), "not finite"),
        (np.array([[np.nan, 0.0]], np.float32), "not finite"),
    ],
)
def test_rows_that_no_model_could_take_are_refused(values: NDArray[np.float32], problem: str) -> None:
    with pytest.raises(InvalidEmbeddings, match=problem):
        PromptEmbeddings(values)


def refused(engine: BatchEngine, given: EngineRequest) -> RequestRefused:
    with pytest.raises(RequestRefused) as error:
        engine.submit(given)
    return error.value


def test_what_the_model_cannot_take_is_refused_by_name() -> None:
    able = engine()
    wide = PromptEmbeddings(np.ones((1, WIDTH + 1), np.float32))
    error = refused(able, request(wide))
    assert (error.code, error.field) == (ErrorCode.INVALID, "prompt_embeds")
    assert "rows of 5 numbers, the hidden size of the model is 4" in error.text
    unable = BatchEngine(ScriptedRunner(), max_queue=4, step_tokens=64)
    error = refused(unable, request(rows(1.0)))
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "prompt_embeds")
    error = refused(able, request(rows(1.0), prompt_logprobs=True))
    assert (error.code, error.field) == (ErrorCode.UNSUPPORTED, "prompt_logprobs")
    error = refused(able, EngineRequest(1, rows(1.0).ids, embeddings=rows(2.0)))
    assert (error.code, error.field) == (ErrorCode.INVALID, "prompt_embeds")
    error = refused(able, EngineRequest(1, rows(1.0).ids))
    assert (error.code, error.field) == (ErrorCode.INVALID, "prompt")


def test_a_runner_gets_no_number_without_its_row() -> None:
    capabilities = ScriptedRunner(embedding_width=WIDTH).capabilities
    given = rows(1.0)
    check_chunks(capabilities, lambda slot: 0, [Chunk(0, (3, *given.ids), 0, 0, given)])
    for wrong in (Chunk(0, given.ids, 0, 0), Chunk(0, rows(2.0).ids, 0, 0, given)):
        with pytest.raises(ValueError, match="none outside of a vocabulary"):
            check_chunks(capabilities, lambda slot: 0, [wrong])


def test_the_context_counts_rows_and_has_room_for_the_answer() -> None:
    full = PromptEmbeddings(np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH))
    assert len(generate(engine(context=9), request(full))) == 1
    error = refused(engine(context=8), request(full))
    assert (error.code, error.field) == (ErrorCode.CONTEXT, "prompt_embeds")


def test_penalties_and_dry_count_the_tokens_alone() -> None:
    given = rows(1.0, 1.0, 1.0)
    sampling = Sampling(repetition_penalty=2.0, dry_multiplier=1.0, dry_base=2.0)
    for before in ((), (5, 6)):
        processors = LogitsProcessors.of(request(given, before, sampling=sampling))
        assert processors is not None
        edits = processors.sample_spec(sampling, 9).edits
        assert (set() if edits is None else set(edits.tokens.tolist())) == set(before)
        processors.accept(5)
    assert len(generate(engine(), request(given, sampling=sampling))) == 4


def test_blocks_of_the_tier_tell_rows_from_tokens() -> None:
    def key(tokens: Sequence[int]) -> bytes:
        blocks: list[RowBlock] = []
        extend(blocks, b"root", tokens, 2, 1)
        return blocks[0].key

    number = rows(1.0).ids[0]
    assert len({key(tokens) for tokens in ((number, 1), (1, number), (1, 1), (rows(2.0).ids[0], 1))}) == 4
    assert key((number, 1)) == key((rows(1.0).ids[0], 1))


def test_rows_of_the_cache_are_not_read_for_other_workers() -> None:
    """They would find them by tokens, which these have not."""
    for given, held in ((EngineRequest(1, tuple(range(40))), True), (request(rows(*range(40))), False)):
        served = engine()
        served.submit(given)
        served.step()
        assert (served.read_rows(ReadRows(1, 1, 1, 0, 8)).held > 0) == held
