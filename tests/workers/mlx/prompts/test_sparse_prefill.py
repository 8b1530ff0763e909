"""Sparse prefill with two real models on MLX: the draft model scores, and the model computes what is kept."""

from pathlib import Path

import numpy as np
import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.workers.engine.harness.batched import always_by, drafting_by
from tests.workers.mlx.conftest import Load
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, Runner
from workers.engine.sparse.selection import forced_ranges
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.sampling.sample_spec import SampleSpec

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(5, 60, 230))
PART = SparsePrompt(0.5, forced_ranges(len(PROMPT)))


@pytest.fixture
def pair(tmp_path: Path, load: Load) -> tuple[Runner, Runner]:
    paths = [make_checkpoint(tmp_path / name, "llama", layers=layers) for name, layers in (("model", 2), ("draft", 1))]
    return load(paths[0], context=256), load(paths[1], context=256, attention=True)


def answers(
    pair: tuple[Runner, Runner], *requests: EngineRequest, speculates: bool = False
) -> dict[int, tuple[list[int], tuple[tuple[int, int], ...]]]:
    """The tokens of each request, and what of its prompt was kept."""
    target, draft = pair
    drafter = DraftModel(draft)
    drafting = drafting_by(drafter, lambda: 3)
    engine = BatchEngine(
        target,
        max_queue=8,
        step_tokens=64,
        sparse=SparsePrefill(draft, drafter),
        speculator=always_by(drafting, target.capabilities, beside_prompts=True) if speculates else None,
    )
    for request in requests:
        engine.submit(request)
    tokens: dict[int, list[int]] = {}
    kept: dict[int, tuple[tuple[int, int], ...]] = {}
    while not engine.idle:
        result = engine.step()
        assert not result.failures
        kept |= {start.stream: start.kept for start in result.starts}
        for token in result.tokens:
            tokens.setdefault(token.stream, []).append(token.token)
    for runner in pair:
        for slot in range(runner.capabilities.slots):
            runner.reset(slot)
    return {stream: (tokens[stream], kept[stream]) for stream in tokens}


def request(stream: int, sparse: SparsePrompt | None) -> EngineRequest:
    return EngineRequest(stream, PROMPT, Sampling(temperature=0.9, seed=stream), 24, sparse=sparse)


def test_a_part_of_a_prompt_has_the_same_answer_in_any_batch_and_with_drafts(pair: tuple[Runner, Runner]) -> None:
    requests = [request(1, PART), request(2, None), request(3, SparsePrompt(0.8, PART.forced))]
    alone = {each.stream: answers(pair, each)[each.stream] for each in requests}
    assert [len(alone[stream][1]) > 1 for stream in (1, 2, 3)] == [True, False, True]
    assert answers(pair, *requests) == alone
    assert answers(pair, *requests, speculates=True) == alone
    again = answers(pair, request(1, SparsePrompt(kept=alone[1][1])))
    assert again[1] == alone[1]


def test_with_all_kept_the_tokens_are_those_of_the_whole_prompt(pair: tuple[Runner, Runner]) -> None:
    asked = (None, SparsePrompt(kept=((0, 230),)), SparsePrompt(1.0, PART.forced))
    (whole, _), (kept, ranges), (all_kept, none) = (answers(pair, request(1, each))[1] for each in asked)
    assert kept == all_kept == whole
    assert (ranges, none) == (((0, 230),), ()), "it is computed like any other"


def test_the_logits_of_the_call_before_are_not_kept(pair: tuple[Runner, Runner]) -> None:
    _, draft = pair
    assert draft.attention is not None
    draft.prefill([Chunk(0, PROMPT[:4], 0, 0)], [SampleSpec(Sampling(), 4)])
    draft.attention.queries(Chunk(0, PROMPT[4:6], 4, 4))
    with pytest.raises(RuntimeError, match="no token was sampled by the last call"):
        draft.logprobs([0])
