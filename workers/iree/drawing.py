"""Tokens from the logits that a step leaves on the device: what was asked of them is done by graphs of their own.

A graph that is not ready yet is done without: numpy computes the same, to the bit, from the rows' logits.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers import sampling
from workers.edits import all_allowed, edit_calls, masks, shaped
from workers.iree.device import Device
from workers.iree.library import Library
from workers.logprobs import finish, report
from workers.narrow import UNDECIDED
from workers.runner import Draw, TokenLogprobs

Call = Callable[..., list[rt.HalBufferView]]


class _Last(NamedTuple):
    """Logits on the device, the tokens of all their rows, and the caller's rows among them."""

    logits: rt.HalBufferView
    tokens: list[int]
    places: Sequence[int]


class Drawing:
    """Owns the last step's logits until the next one, for their report."""

    def __init__(self, device: Device, graphs: Library, call: Call, vocab_size: int) -> None:
        """`call` runs one of the graphs that are ready."""
        self._device = device
        self._graphs = graphs
        self._call = call
        self._vocab_size = vocab_size
        self._last: _Last | None = None

    def forget(self) -> None:
        """Let go of the last step's logits."""
        self._last = None

    def draw(
        self, result: list[rt.HalBufferView], draws: Sequence[Draw | None], places: Sequence[int]
    ) -> list[int | None]:
        """Tokens of the rows at these places, those that draw; None for one whose logits are not numbers.

        `result` has greedy tokens and logits of all rows.
        """
        active = [draw for draw in draws if draw is not None]
        if sampling.needs_sampling(active):
            drawn = self._sample(result[1], draws, active)
        else:
            drawn = self._device.download(result[0]).tolist()
        self._last = _Last(result[1], drawn, places)
        return [drawn[place] if drawn[place] >= 0 else None for place in places]

    def logprobs(self, rows: Sequence[int]) -> list[TokenLogprobs]:
        """See `workers.runner.Runner.logprobs`. Raises `RuntimeError` when the last step drew nothing."""
        if self._last is None:
            raise RuntimeError("no token was drawn by the last call")
        logits, drawn, all_places = self._last
        places, size = [all_places[row] for row in rows], len(drawn)
        device, tokens = self._device, np.array(drawn, np.int32)
        if self._ready("report", size):
            results = self._call(f"report_{size}", logits, device.upload(tokens))
            ids, distance, mass = (device.download(each)[places] for each in results)
        else:
            ids, distance, mass = report(np, device.download(logits)[places], tokens[places])
        return finish(ids, distance, mass, self._vocab_size)

    def _sample(self, logits: rt.HalBufferView, draws: Sequence[Draw | None], active: list[Draw]) -> list[int]:
        """Tokens of all rows in one call; those of rows that do not draw are meaningless."""
        filters, size = sampling.needs_filters(active), len(draws)
        kind = "narrow" if filters else "draw"
        changes = _changes(active)
        if not all(self._ready(name, size) for name in (kind, *changes)):
            some = shaped(np, self._device.download(logits)[_drawing(draws)], active)
            return self._sample_here(some, draws, filters)
        filler = Draw(active[0].sampling, active[0].position)  # rows that do not draw cost what they cost
        filled = [draw or filler for draw in draws]
        if changes:
            logits = self._change(logits, filled)
        wanted = [self._device.upload(values) for values in sampling.parameters(filled)]
        tokens = self._tokens(kind, logits, wanted)
        if all(tokens[row] != UNDECIDED for row in _drawing(draws)):
            return tokens
        if self._ready("filter", size):
            return self._tokens("filter", logits, wanted)
        return self._sample_here(self._device.download(logits)[_drawing(draws)], draws, filters)

    def _tokens(self, kind: str, logits: rt.HalBufferView, wanted: Sequence[rt.HalBufferView]) -> list[int]:
        (tokens,) = self._call(f"{kind}_{logits.shape[0]}", logits, *wanted)
        return list(self._device.download(tokens).tolist())

    def _sample_here(self, logits: NDArray[np.float32], draws: Sequence[Draw | None], filters: bool) -> list[int]:
        """`_sample` in numpy, from the changed logits of the rows that draw."""
        active = [draw for draw in draws if draw is not None]
        drawn: NDArray[np.int32] = np.zeros(len(draws), np.int32)
        drawn[_drawing(draws)] = sampling.sample(np, logits, *sampling.parameters(active), filters=filters)
        return list(drawn.tolist())

    def _change(self, logits: rt.HalBufferView, draws: Sequence[Draw]) -> rt.HalBufferView:
        """The logits as edits and masks leave them; the given ones stay as they are where they are reported."""
        upload, size = self._device.upload, len(draws)
        words = masks(draws, self._vocab_size)
        if words is None and any(draw.sampling.logprobs is not None for draw in draws):
            words = all_allowed(size, self._vocab_size)  # for a copy: edits are made in place
        if words is not None:
            (logits,) = self._call(f"mask_{size}", logits, upload(words))
        for arrays in edit_calls(draws):
            (logits,) = self._call(f"edit_{size}", logits, *map(upload, arrays))
        return logits

    def _ready(self, kind: str, size: int) -> bool:
        return self._graphs.covering(kind, (size,), size) is not None


def _drawing(draws: Sequence[Draw | None]) -> list[int]:
    """The rows that draw."""
    return [row for row, draw in enumerate(draws) if draw is not None]


def _changes(draws: Sequence[Draw]) -> tuple[str, ...]:
    """The graphs that change logits for these draws."""
    if all(draw.edits is None and draw.mask is None for draw in draws):
        return ()
    return ("mask",) if all(draw.edits is None for draw in draws) else ("mask", "edit")
