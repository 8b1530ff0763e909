"""Samples tokens from logits on MLX, and reports their log-probabilities."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from workers.sampling.logit_edits import process_logits
from workers.sampling.logprobs import RowLogprobs, decode_report, report
from workers.sampling.sample import greedy, needs_filters, needs_rare_filters, needs_sampling, sample
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import SamplingArrays, sampling_arrays
from workers.sampling.top_candidates import UNDECIDED, sample_top_candidates


class MlxSampler:
    """Owns the logits of the last call, of which log-probabilities may be asked for."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sampled: tuple[mx.array, list[int]] | None = None

    def forget(self) -> None:
        """Free the logits of the last call."""
        self._sampled = None

    def sample(self, logits: mx.array, specs: Sequence[SampleSpec]) -> list[int | None]:
        """Sample one token per row of float32 logits [rows, vocab_size]; None for a row with non-finite logits."""
        self._sampled = None
        if needs_sampling(specs):
            changed = process_logits(mx, logits, specs)
            given, filters, rare = sampling_arrays(specs), needs_filters(specs), needs_rare_filters(specs)
            arrays = SamplingArrays(*map(mx.array, (given if rare else given.common).given))
            if not filters or rare:
                sampled = sample(mx, changed, arrays, filters=filters)
            else:
                sampled = sample_top_candidates(mx, changed, arrays)
                if (sampled == UNDECIDED).any().item():
                    sampled = sample(mx, changed, arrays)
        else:
            sampled = greedy(mx, logits)
        tokens: list[int] = np.array(sampled).tolist()
        self._sampled = logits, tokens
        return [token if token >= 0 else None for token in tokens]

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """Return the log-probabilities of samples of the last call, by their index in it. Raises `RuntimeError` if it
        has sampled none."""
        if self._sampled is None:
            raise RuntimeError("no token was sampled by the last call")
        logits, tokens = self._sampled
        wanted = list(rows)
        return self.reports(logits[mx.array(wanted)], [tokens[row] for row in wanted])

    def reports(self, logits: mx.array, tokens: Sequence[int]) -> list[RowLogprobs]:
        """Return the log-probabilities of a token for each row of logits."""
        ids, distance, mass = map(np.array, report(mx, logits, mx.array(list(tokens), dtype=mx.int32)))
        return decode_report(ids, distance, mass, self._vocab_size)
