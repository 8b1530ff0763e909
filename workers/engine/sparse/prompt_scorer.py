"""Scores prompts by the draft model, a bounded part between two steps of the model.

The draft model computes the whole prompt and a few greedy tokens after it. How much the last token of the prompt and
these attend to a token of the prompt is its score: averaged over `POOL` neighbours, the most of all layers and
heads, and the mean of the rows (SpecPrefill, https://arxiv.org/abs/2502.02789, where tokens are sampled).
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.engine.runner import LOOKED_ROWS, AttentionReader, Chunk, DecodeRow, NotFiniteError, Runner
from workers.engine.sparse.attention_scores import layer_scores
from workers.sampling.sample_spec import SampleSpec

LAYERS_S = 0.01
"""Seconds after which no further layer is scored between two steps; one is in any case."""


class PromptScorer:
    """Scores one prompt, in a slot of the draft model's runner that it has for itself."""

    def __init__(
        self,
        runner: Runner,
        reader: AttentionReader,
        slot: int,
        prompt: tuple[int, ...],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The slot is empty, and has room for the prompt and `LOOKED_ROWS` - 1 more rows."""
        self.prompt = prompt
        self.slot = slot
        self._runner = runner
        self._reader = reader
        self._clock = clock
        self._chunks = runner.capabilities.prefill_chunks
        self._rows = 0
        self._layers: Iterator[NDArray[np.float32]] | None = None
        self._most = np.zeros((LOOKED_ROWS, len(prompt)), np.float32)

    def advance(self, most: int) -> NDArray[np.float32] | None:
        """Compute up to about `most` tokens of the prompt, or some of what follows them. Returns the scores of its
        tokens once all is computed: float32 [prompt]. Raises what the runner raises, and `NotFiniteError`."""
        if self._rows < len(self.prompt) - 1:
            self._prefill(most)
            return None
        if self._layers is None:
            self._layers = self._look(self._continued())
            return None
        until = self._clock() + LAYERS_S
        for scores in self._layers:
            np.maximum(self._most, scores, out=self._most)
            if self._clock() >= until:
                return None
        mean: NDArray[np.float32] = self._most.mean(axis=0)
        return mean

    def _prefill(self, most: int) -> None:
        size = max((size for size in self._chunks if size <= most), default=self._chunks[0])
        tokens = self.prompt[self._rows : min(self._rows + size, len(self.prompt) - 1)]
        self._runner.prefill([Chunk(self.slot, tokens, self._rows, self._rows)], [None])
        self._rows += len(tokens)

    def _continued(self) -> tuple[int, ...]:
        """Return the last token of the prompt and the greedy ones after it, `LOOKED_ROWS` together."""
        at = len(self.prompt) - 1
        spec = SampleSpec(Sampling(), at + 1)
        tokens = [self.prompt[-1]]
        sampled = self._runner.prefill([Chunk(self.slot, (tokens[0],), at, at)], [spec])
        while True:
            if sampled[0] is None:
                raise NotFiniteError
            tokens.append(sampled[0])
            if len(tokens) == LOOKED_ROWS:
                return tuple(tokens)
            row = at + len(tokens) - 1
            sampled = self._runner.decode([DecodeRow(self.slot, tokens[-1], row, row, SampleSpec(Sampling(), row + 1))])

    def _look(self, tokens: tuple[int, ...]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of each layer by the attention of the last rows: float32 [rows, prompt]."""
        at, end = len(self.prompt) - 1, len(self.prompt)
        self._runner.copy_prefix(self.slot, self.slot, at)
        queries = self._reader.queries(Chunk(self.slot, tokens, at, at))
        for index, layer in enumerate(self._reader.layers):
            yield layer_scores(queries[index], self._reader.keys(self.slot, layer, end))
