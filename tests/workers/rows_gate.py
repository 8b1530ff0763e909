"""Gate of reading and writing cache rows for any runner: tokens are those of the slot that the rows were read from."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec

SAMPLINGS = (Sampling(), Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=11))


def run_rows_gate(runner: Runner, other: Runner, length: int, *, splits: Sequence[int] = (1, 16, 33)) -> None:
    """Move a prompt of `length` tokens and the rows decoded after it between slots and runners, in pieces that end at
    `splits`.

    The runners may be one; they have two slots or more, all of them empty. Raises `AssertionError` where a token or a
    bit differs.
    """
    assert runner.capabilities.rows_format
    assert other.capabilities.rows_format == runner.capabilities.rows_format
    prompt = tuple((7 * at + 5) % runner.capabilities.vocab_size for at in range(length))
    for sampling in SAMPLINGS:
        expected = _continue(runner, 0, _prefill(runner, 0, prompt, sampling), length, sampling, 8)
        runner.reset(0)
        begun = _continue(runner, 0, _prefill(runner, 0, prompt, sampling), length, sampling, 4)
        assert begun == expected[:4]
        written = length + 3  # the last token has no row yet
        bounds = [0, *(split for split in splits if split < written), written]
        pieces = [bytes(runner.read_rows(0, start, end)) for start, end in pairwise(bounds)]
        assert [len(piece) for piece in pieces] == [
            (end - start) * runner.capabilities.row_bytes for start, end in pairwise(bounds)
        ]
        whole = bytes(runner.read_rows(0, 0, written))
        runner.reset(0)
        for target, slot in ((runner, 1), (other, 0)):
            for start, piece in zip(bounds, pieces, strict=False):
                target.write_rows(slot, start, piece)
            assert bytes(target.read_rows(slot, 0, written)) == whole
            assert _continue(target, slot, begun, length, sampling, 8) == expected
            target.reset(slot)
            # The prompt without its last row, which is computed again.
            target.write_rows(slot, 0, _rows(runner, prompt, length - 1))
            (first,) = target.prefill(
                [Chunk(slot, prompt[-1:], length - 1, length - 1)], [SampleSpec(sampling, length)]
            )
            assert first == expected[0]
            target.reset(slot)
    _check_refusals(runner, prompt)


def _check_refusals(runner: Runner, prompt: tuple[int, ...]) -> None:
    """Neither changes what a slot holds."""
    capabilities = runner.capabilities
    rows = _rows(runner, prompt, 2)
    runner.write_rows(1, 0, rows)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: runner.read_rows(capabilities.slots, 0, 1), "slot"),
        (lambda: runner.read_rows(-1, 0, 1), "slot"),
        (lambda: runner.read_rows(1, 0, 3), "end"),
        (lambda: runner.read_rows(1, 1, 1), "start"),
        (lambda: runner.read_rows(1, -1, 1), "start"),
        (lambda: runner.write_rows(capabilities.slots, 0, rows), "slot"),
        (lambda: runner.write_rows(1, 1, rows), "start"),
        (lambda: runner.write_rows(1, 3, rows), "start"),
        (lambda: runner.write_rows(1, 2, b""), "rows"),
        (lambda: runner.write_rows(1, 2, rows[:-1]), "rows"),
        (lambda: runner.write_rows(1, 2, bytes((capabilities.context - 1) * capabilities.row_bytes)), "rows"),
    ]
    for call, field in refused:
        with pytest.raises(Exception, match=field):
            call()
    assert bytes(runner.read_rows(1, 0, 2)) == rows
    runner.reset(1)


def _rows(runner: Runner, prompt: tuple[int, ...], count: int) -> bytes:
    """Return the first rows of a prompt, computed in slot 0 of a runner that has it empty, before and after."""
    runner.prefill([Chunk(0, prompt[:count], 0, 0)], [None])
    rows = bytes(runner.read_rows(0, 0, count))
    runner.reset(0)
    return rows


def _prefill(runner: Runner, slot: int, prompt: tuple[int, ...], sampling: Sampling) -> list[int]:
    (token,) = runner.prefill([Chunk(slot, prompt, 0, 0)], [SampleSpec(sampling, len(prompt))])
    assert token is not None
    return [token]


def _continue(runner: Runner, slot: int, tokens: list[int], length: int, sampling: Sampling, count: int) -> list[int]:
    """Decode after a prompt of `length` tokens and those of `tokens`, until there are at least `count` of them."""
    tokens = list(tokens)
    for at in range(length + len(tokens) - 1, length + max(count, len(tokens)) - 1):
        (token,) = runner.decode([DecodeRow(slot, tokens[-1], at, at, SampleSpec(sampling, at + 1))])
        assert token is not None
        tokens.append(token)
    return tokens
