"""The contract of `workers.engine.runner.Runner`, as the scripted runner checks it, as far as calls alone show it."""

from collections.abc import Sequence
from itertools import pairwise

from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import Chunk, DecodeRow, RunnerCapabilities
from workers.sampling.sample_spec import SampleSpec


class ContractError(Exception):
    """Raised when the caller breaks the contract of `workers.engine.runner.Runner`, which is a bug above the runner."""


def check_call(
    capabilities: RunnerCapabilities,
    chunks: Sequence[Chunk],
    specs: Sequence[SampleSpec | None],
    *,
    hidden: bool = False,
) -> None:
    """Raise `ValueError` for a call whose chunks do not fit together."""
    if capabilities.bidirectional and not hidden:
        raise ValueError("prefill of a bidirectional model")
    if not chunks or len(chunks) != len(specs):
        raise ValueError(f"{len(specs)} specs for {len(chunks)} chunks")
    if len({chunk.slot for chunk in chunks}) != len(chunks):
        raise ValueError(f"two chunks of one slot: {sorted(chunk.slot for chunk in chunks)}")
    block, most = capabilities.block_rows, capabilities.prefill_chunks[-1]
    if len(chunks) > 1 and not capabilities.exact_rows:
        raise ValueError("several chunks a call, and rows are not exact")
    if len(chunks) > 1 and sum(-(-len(chunk.tokens) // block) * block for chunk in chunks) > most:
        raise ValueError(f"a call of {len(chunks)} chunks with more than {most} rows")


def check_positions(capabilities: RunnerCapabilities, chunk: Chunk, *, sparse: bool, mrope: bool) -> None:
    """Raise `ValueError` for a chunk whose length, positions or images the runner does not have."""
    most = capabilities.context if capabilities.bidirectional else capabilities.prefill_chunks[-1]
    if not 1 <= len(chunk.tokens) <= most:
        raise ValueError(f"a chunk of {len(chunk.tokens)} tokens")
    positions = [chunk.position_at(index) for index in range(len(chunk.tokens))]
    rising = all(first < second for first, second in pairwise(positions))
    left_out = positions[-1] - (chunk.start + len(positions) - 1)
    if chunk.position < chunk.start or not rising or (left_out and not sparse):
        raise ValueError(f"chunk at positions {positions} in row {chunk.start}")
    if chunk.axes is not None and (not mrope or chunk.axes.shape != (3, len(positions))):
        raise ValueError(f"positions {chunk.axes.shape} of {len(positions)} tokens on three axes")
    _check_ends(capabilities, chunk)


def _check_ends(capabilities: RunnerCapabilities, chunk: Chunk) -> None:
    """Check that a chunk has all of each image whose tokens attend to each other."""
    if not capabilities.bidirectional_images or not has_rows(chunk.tokens):
        if chunk.ends is not None:
            raise ValueError("ends of a chunk without such images")
        return
    ends = chunk.ends or ()
    last = chunk.start + len(chunk.tokens)
    rows = list(enumerate(zip(chunk.tokens, ends, strict=False), chunk.start))
    images = {end: [row for row, (token, other) in rows if token < 0 and other == end] for end in set(ends)}
    known = all(end == row + 1 or token < 0 for row, (token, end) in rows)
    whole = all(not image or (image[-1] + 1 == end and end <= last) for end, image in images.items())
    if len(ends) != len(chunk.tokens) or not known or not whole:
        raise ValueError(f"ends {ends} of a chunk at row {chunk.start}")


def check_sample(chunk: Chunk, spec: SampleSpec | None) -> None:
    """Raise `ValueError` for a sample that is not at the position after the chunk."""
    if spec is not None and spec.position != chunk.position_at(len(chunk.tokens) - 1) + 1:
        raise ValueError(f"a sample at position {spec.position} after {chunk}")


def check_row(row: DecodeRow, *, sparse: bool, mrope: bool) -> None:
    """Raise `ValueError` for a decode row without a prompt, or one at another position than its token."""
    if row.start == 0:
        raise ValueError(f"decode of slot {row.slot}, which has no prompt")
    left_out = row.position - row.start
    if mrope:  # a sample is at the place of its token, whatever the position
        allowed = 0 <= row.position <= row.start and row.sample.position == row.start + 1
    else:
        allowed = left_out >= 0 and (sparse or not left_out) and row.sample.position == row.position + 1
    if not allowed:
        raise ValueError(f"row {row.start} at position {row.position} samples for {row.sample.position}")
