"""Penalties, bias and minimal length against transformers' logits processors, on the same logits."""

from typing import Any

import numpy as np
import pytest

from protocol.request import Bias, Sampling
from workers.engine.logits_processors import AllowedTokens, LogitsProcessors
from workers.engine.request import EngineRequest
from workers.sampling.logit_edits import process_logits

pytestmark = pytest.mark.reference

VOCAB = 300
PROMPT = tuple(map(int, np.random.default_rng(1).integers(0, VOCAB, 40)))
ANSWER = tuple(map(int, np.random.default_rng(2).integers(0, 50, 60)))
LOGITS = (np.random.default_rng(3).standard_normal((1, VOCAB)) * 4).astype(np.float32)


def by_transformers(torch: Any, *processors: Any) -> Any:
    scores = torch.from_numpy(LOGITS.copy())
    for processor in processors:
        scores = processor(torch.tensor([PROMPT + ANSWER]), scores)
    return scores.numpy()


def by_us(request: EngineRequest) -> Any:
    processors = LogitsProcessors.of(request)
    assert processors is not None
    return process_logits(np, LOGITS, [processors.sample_spec(request.sampling, 100)])


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_repetition(torch: Any, penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    request = EngineRequest(1, PROMPT, Sampling(repetition_penalty=penalty), resume=ANSWER)
    expected = by_transformers(torch, RepetitionPenaltyLogitsProcessor(penalty))
    np.testing.assert_allclose(by_us(request), expected, rtol=1e-6)


def test_bias_comes_before_repetition(torch: Any) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

    bias = {PROMPT[0]: 5.0, ANSWER[0]: -7.5, 299: 100.0}
    sampling = Sampling(repetition_penalty=1.3, logit_bias=tuple(Bias(token, value) for token, value in bias.items()))
    processors = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    expected = by_transformers(torch, processors, RepetitionPenaltyLogitsProcessor(1.3))
    np.testing.assert_allclose(by_us(EngineRequest(1, PROMPT, sampling, resume=ANSWER)), expected, rtol=1e-6)


@pytest.mark.parametrize("more", [0, 1])
def test_minimal_length(torch: Any, more: int) -> None:
    from transformers import MinNewTokensLengthLogitsProcessor

    minimum = len(ANSWER) + more
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), minimum, [7, 9])
    request = EngineRequest(1, PROMPT, Sampling(), eos=frozenset({7, 9}), resume=(*ANSWER[:-1], 5), min_tokens=minimum)
    np.testing.assert_array_equal(by_us(request), by_transformers(torch, processor))


def test_a_mask(torch: Any) -> None:
    from transformers import PrefixConstrainedLogitsProcessor

    allowed = list(range(0, VOCAB, 7))
    processor = PrefixConstrainedLogitsProcessor(lambda batch, tokens: allowed, 1)
    request = EngineRequest(1, PROMPT, constraint=AllowedTokens(allowed, VOCAB), resume=ANSWER)
    np.testing.assert_array_equal(by_us(request), by_transformers(torch, processor))
