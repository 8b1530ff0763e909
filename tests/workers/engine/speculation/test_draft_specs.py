"""The samples after drafted tokens are those of a sequence that has got these tokens, whose state stays as it was."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.request import Bias, Sampling
from tests.grammar_matchers import matcher_of
from workers.engine.edits.dry import Breakers
from workers.engine.logits_processors import LogitsProcessors
from workers.engine.request import EngineRequest
from workers.sampling.sample_spec import SampleSpec, with_masks

VOCAB = 512
EVERYTHING = Sampling(
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    logit_bias=(Bias(3, 2.0), Bias(7, -100.0)),
    dry_multiplier=1.0,
    dry_allowed_length=1,
)
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def processors(request: EngineRequest, *tokens: int, grammar: int | None = None) -> LogitsProcessors:
    """New processors of a sequence with these tokens of an answer."""
    constraint = None if grammar is None else matcher_of(grammar, VOCAB, tokens)
    made = LogitsProcessors.of(replace(request, resume=tokens, constraint=constraint))
    assert made is not None
    return made


def content(spec: SampleSpec) -> dict[str, Any]:
    """Return the parts of a sample, with its mask, whatever the order of edits."""
    (spec,) = with_masks([spec])
    edits: dict[int, tuple[float, ...]] = {}
    if spec.edits is not None:
        values = np.stack([spec.edits.bias, spec.edits.up, spec.edits.down, spec.edits.minus], axis=1)
        edits = {int(token): tuple(row) for token, row in zip(spec.edits.tokens, values.tolist(), strict=True)}
    mask = None if spec.mask is None else spec.mask.tolist()
    return {"position": spec.position, "edits": edits, "mask": mask}


@given(TOKENS, TOKENS, TOKENS)
def test_edits_are_those_after_the_tokens(prompt: list[int], answer: list[int], draft: list[int]) -> None:
    request = EngineRequest(
        1,
        tuple(prompt),
        EVERYTHING,
        eos=frozenset({8}),
        min_tokens=len(answer) + 2,
        bad_sequences=((1, 2), (5,)),
        breakers=Breakers(bytes(token == 4 for token in range(10)), ((6, 7),)),
    )
    mine = processors(request, *answer)
    before, length = content(mine.sample_spec(EVERYTHING, 0)), len(prompt) + len(answer)
    specs = mine.draft_specs(EVERYTHING, length, draft)
    assert len(specs) == len(draft)
    for count, spec in enumerate(specs, 1):
        fresh = processors(request, *answer, *draft[:count])
        assert content(spec) == content(fresh.sample_spec(EVERYTHING, length + count))
    assert content(mine.sample_spec(EVERYTHING, 0)) == before
    for token in draft:
        mine.accept(token)
    fresh = processors(request, *answer, *draft)
    assert content(mine.sample_spec(EVERYTHING, 0)) == content(fresh.sample_spec(EVERYTHING, 0))


@pytest.mark.parametrize("text", [b"yes, always", b"no, never at all", b"no, nevermore"])
def test_masks_are_those_after_the_tokens_as_far_as_the_grammar_goes(text: bytes) -> None:
    """The last text leaves the grammar: what follows is not drafted. Nothing follows a complete answer."""
    request, sampling = EngineRequest(1, (5,)), Sampling()
    mine = processors(request, text[0], grammar=2)
    specs = mine.draft_specs(sampling, 2, text[1:])
    assert len(specs) == {b"yes, always": 9, b"no, never at all": 14, b"no, nevermore": 8}[text]
    for count, spec in enumerate(specs, 1):
        fresh = processors(request, *text[: 1 + count], grammar=2)
        assert content(spec) == content(fresh.sample_spec(sampling, 2 + count))
    copied = mine.copied_constraint()
    assert copied is not None
    assert bytes(copied.forced()) in (b"es, always", b"o")


class LimitedAfterSeven:
    """Allows all tokens up to token 7, and only 1 and 2 after it. It knows without a mask that it has not ended."""

    ended: bool | None = False

    def __init__(self, *tokens: int) -> None:
        self._tokens = list(tokens)

    def accept(self, token: int) -> None:
        self._tokens.append(token)

    def fork(self) -> "LimitedAfterSeven":
        return LimitedAfterSeven(*self._tokens)

    def forced(self) -> tuple[int, ...]:
        return ()

    def mask(self) -> NDArray[np.uint32] | None:
        return np.array([0b110], np.uint32) if 7 in self._tokens else None


def test_a_mask_is_that_of_its_position_where_the_constraint_limits_a_later_one() -> None:
    mine = LogitsProcessors.of(EngineRequest(1, (5,), constraint=LimitedAfterSeven()))
    assert mine is not None
    masks = [content(spec)["mask"] for spec in mine.draft_specs(Sampling(), 1, [3, 7, 1])]
    assert masks == [None, [0b110], [0b110]]
