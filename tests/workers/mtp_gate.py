"""The gate of a head for multi-token prediction, on any runner: it computes what the reference does."""

import numpy as np

from protocol.request import Sampling
from tests.workers.mtp_reference import Array, MtpReference
from tests.workers.qwen_mtp_reference import QwenMtpReference
from workers.engine.runner import Chunk, DecodeRow, DraftHead, Runner
from workers.sampling.sample_spec import SampleSpec

GREEDY = SampleSpec(Sampling(logprobs=20), 0)
TOLERANCE = 2e-4


def tokens_of(count: int) -> tuple[int, ...]:
    return tuple(map(int, np.random.default_rng(0).integers(3, 500, count)))


def head_of(runner: Runner) -> DraftHead:
    assert runner.draft_head is not None
    return runner.draft_head


def check_row(runner: Runner, logits: Array, token: int | None, tolerance: float) -> None:
    """Check the token and the log-probabilities of the only row of the last draft."""
    (reported,) = runner.logprobs([0])
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert token is not None
    assert expected[token] >= expected.max() - tolerance
    np.testing.assert_allclose(expected[list(reported.tokens)], reported.logprobs, atol=tolerance)


def run_mtp_gate(
    runner: Runner, reference: MtpReference | QwenMtpReference, tokens: tuple[int, ...], tolerance: float = TOLERANCE
) -> None:
    """Draft after a prompt in two chunks, after steps without drafts, after an accepted and a rejected draft, and after
    a prefix that was copied. All tokens are those of `tokens`."""
    head = head_of(runner)
    hidden = reference.hidden(tokens)
    own_logits, _ = reference.mtp(hidden[:-1], tokens[1:])
    half, end = 21, 40
    runner.prefill([Chunk(0, tokens[:half], 0, 0)], [None])
    runner.prefill([Chunk(0, tokens[half:end], half, half)], [GREEDY])
    assert head.ready(0, end)
    assert not head.ready(0, end + 1)
    assert not head.ready(1, end)

    def draft(row: int, slot: int = 0) -> int | None:
        (token,) = head.draft([DecodeRow(slot, tokens[row], row, row, GREEDY)])
        check_row(runner, own_logits[row - 1], token, tolerance)
        return token

    draft(end)
    # Its own hidden state stands for the one of the token that it has drafted.
    _, state = reference.mtp(hidden[:end], tokens[1 : end + 1])
    deeper, _ = reference.mtp(np.concatenate([hidden[:end], state[-1:]]), tokens[1 : end + 2])
    (token,) = head.draft([DecodeRow(0, tokens[end + 1], end + 1, end + 1, GREEDY)])
    check_row(runner, deeper[-1], token, tolerance)
    for row in range(end, end + 3):
        runner.decode([DecodeRow(0, tokens[row], row, row, GREEDY)])
    draft(end + 3)
    accepted = [DecodeRow(0, tokens[row], row, row, GREEDY) for row in range(end + 3, end + 6)]
    runner.decode(accepted)
    draft(end + 6)
    rejected = [(end + 6, tokens[end + 6]), (end + 7, 7), (end + 8, 8)]
    runner.decode([DecodeRow(0, token, row, row, GREEDY) for row, token in rejected])
    draft(end + 7)
    runner.copy_prefix(0, 1, end + 7)
    runner.reset(0)
    draft(end + 7, slot=1)
    assert not head.ready(0, end + 7)
