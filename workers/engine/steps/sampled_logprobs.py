"""Log-probabilities of the tokens that the last call of a runner sampled."""

from collections.abc import Sequence

from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence
from workers.sampling.logprobs import RowLogprobs


def sampled_logprobs(
    runner: Runner, sampled: list[EngineSequence], tokens: Sequence[int | None], rows: Sequence[int] | None = None
) -> list[RowLogprobs | None]:
    """Return the log-probabilities of tokens that the last call sampled, where the request asks for them. `rows`
    are their indices in that call; None if these are all."""
    wanted = [
        row
        for row, sequence in enumerate(sampled)
        if sequence.request.sampling.logprobs is not None and tokens[row] is not None
    ]
    out: list[RowLogprobs | None] = [None] * len(sampled)
    if wanted:
        reported = runner.logprobs(wanted if rows is None else [rows[row] for row in wanted])
        for row, row_logprobs in zip(wanted, reported, strict=True):
            out[row] = row_logprobs
    return out
