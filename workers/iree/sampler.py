"""Sampling from the logits that a step leaves on the device, by graphs of its own.

Where a graph is not ready yet a larger one serves, or numpy, whose results are bitwise identical.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import iree.runtime as rt
import numpy as np

from protocol.request import Sampling
from workers.engine.runner import Draw, TokenLogprobs
from workers.iree.build.graph_plan import SAMPLE, GraphPlan
from workers.iree.device.device import Device
from workers.iree.graph_registry import GraphRegistry
from workers.sampling import sample as sampling
from workers.sampling.logit_edits import all_allowed, edit_calls, masks, shaped
from workers.sampling.logprobs import finish, report
from workers.sampling.top_candidates import UNDECIDED

Call = Callable[..., list[rt.HalBufferView]]


class _Last(NamedTuple):
    """Logits on the device, the tokens of all their rows, and the caller's rows among them."""

    logits: rt.HalBufferView
    tokens: list[int]
    places: Sequence[int]


class Sampler:
    """Samples tokens. Owns the last step's logits until the next one, for their log-probabilities."""

    def __init__(self, device: Device, graphs: GraphRegistry, call: Call, plan: GraphPlan) -> None:
        """`call` runs a graph that is ready."""
        self._device = device
        self._graphs = graphs
        self._call = call
        self._vocab_size = plan.config.vocab_size
        self._sizes = plan.sample_sizes
        self._at_once = (SAMPLE,) in plan.required()
        self._last: _Last | None = None

    def forget(self) -> None:
        """Release the last step's logits."""
        self._last = None

    def draw(
        self, result: list[rt.HalBufferView], draws: Sequence[Draw | None], places: Sequence[int]
    ) -> list[int | None]:
        """Tokens of the rows at these places, those that draw; None for one whose logits are not numbers.

        `result` has greedy tokens and logits of all rows.
        """
        if sampling.needs_sampling([draw for draw in draws if draw is not None]):
            drawn = self._sample(result[1], [draw or _FILLER for draw in draws])
        else:
            drawn = self._device.numbers(result[0])
        self._last = _Last(result[1], drawn, places)
        return [drawn[place] if drawn[place] >= 0 else None for place in places]

    def logprobs(self, rows: Sequence[int]) -> list[TokenLogprobs]:
        """See `workers.engine.runner.Runner.logprobs`. Raises `RuntimeError` when the last step drew nothing."""
        if self._last is None:
            raise RuntimeError("no token was drawn by the last call")
        logits, drawn, all_places = self._last
        places, tokens = [all_places[row] for row in rows], np.array(drawn, np.int32)
        if size := self._covering("report", len(drawn)):
            tokens = np.pad(tokens, (0, size - len(drawn)))
            results = self._call(f"report_{size}", self._padded(logits, size), self._device.upload(tokens))
            ids, distance, mass = (self._device.download(each)[places] for each in results)
        else:
            ids, distance, mass = report(np, self._device.download(logits)[places], tokens[places])
        return finish(ids, distance, mass, self._vocab_size)

    @np.errstate(over="ignore", invalid="ignore")  # padding rows may hold anything, and so may a row that fails
    def _sample(self, logits: rt.HalBufferView, draws: Sequence[Draw]) -> list[int]:
        """Return the tokens of all rows, from one call where the graphs are ready."""
        if any(draw.edits is not None or draw.mask is not None for draw in draws):
            if size := self._covering("edit", len(draws)):  # which is one module with "mask"
                filled = [*draws, *[_FILLER] * (size - len(draws))]
                logits = self._change(self._padded(logits, size), filled)
            else:
                logits = self._device.upload(shaped(np, self._device.download(logits), draws))
        drawn = self._all_at_once(logits, draws) if self._at_once else self._in_turn(logits, draws)
        return drawn[: len(draws)]

    def _all_at_once(self, logits: rt.HalBufferView, draws: Sequence[Draw]) -> list[int]:
        filled = [*draws, *[_FILLER] * (logits.shape[0] - len(draws))]
        words = [values.view(np.int32) for values in sampling.parameters(filled)]
        (tokens,) = self._call(SAMPLE, logits, self._device.upload(np.stack(words, axis=1)))
        return self._device.numbers(tokens)

    def _in_turn(self, logits: rt.HalBufferView, draws: Sequence[Draw]) -> list[int]:
        """Sample from the top candidates first, and by the filters where these do not decide; by numpy where a graph is
        not ready."""
        filters = sampling.needs_filters(draws)
        tokens = self._tokens("narrow" if filters else "draw", logits, draws)
        if tokens is None or UNDECIDED in tokens[: len(draws)]:
            tokens = self._tokens("filter", logits, draws) if filters else None
        if tokens is None:
            some = self._device.download(logits)[: len(draws)]
            tokens = list(sampling.sample(np, some, *sampling.parameters(draws), filters=filters).tolist())
        return tokens

    def _tokens(self, kind: str, logits: rt.HalBufferView, draws: Sequence[Draw]) -> list[int] | None:
        size = self._covering(kind, logits.shape[0])
        if size is None:
            return None
        filled = [*draws, *[_FILLER] * (size - len(draws))]
        wanted = [self._device.upload(values) for values in sampling.parameters(filled)]
        (tokens,) = self._call(f"{kind}_{size}", self._padded(logits, size), *wanted)
        return self._device.numbers(tokens)

    def _change(self, logits: rt.HalBufferView, draws: Sequence[Draw]) -> rt.HalBufferView:
        """Return the logits with edits and masks applied; the given ones do not change where they are reported."""
        upload, size = self._device.upload, len(draws)
        words = masks(draws, self._vocab_size)
        if words is None and any(draw.sampling.logprobs is not None for draw in draws):
            words = all_allowed(size, self._vocab_size)  # for a copy: edits are made in place
        if words is not None:
            (logits,) = self._call(f"mask_{size}", logits, upload(words))
        for arrays in edit_calls(draws):
            (logits,) = self._call(f"edit_{size}", logits, *map(upload, arrays))
        return logits

    def _covering(self, kind: str, rows: int) -> int | None:
        """Return the rows of the smallest graph that is ready and takes as many."""
        return self._graphs.covering(kind, self._sizes, rows)

    def _padded(self, logits: rt.HalBufferView, rows: int) -> rt.HalBufferView:
        """Return the logits with padding rows, for a larger graph: a copy costs less than sampling by numpy."""
        missing = rows - logits.shape[0]
        if not missing:
            return logits
        return self._device.upload(np.pad(self._device.download(logits), ((0, missing), (0, 0))))


_FILLER = Draw(Sampling(), 0)
"""For rows that do not draw."""
