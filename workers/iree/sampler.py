"""Sampling from the logits that a step leaves on the device, by graphs of its own.

Where a graph is not ready yet a larger one serves, or numpy, whose results are bitwise identical.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import iree.runtime as rt
import numpy as np

from protocol.request import Sampling
from workers.engine.runner import NotFiniteError
from workers.iree.build.graph_list import SAMPLE
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device, Results
from workers.iree.graph_registry import GraphRegistry
from workers.sampling import sample as sampling
from workers.sampling.logit_edits import allow_all, edit_calls, process_logits, stack_masks
from workers.sampling.logprobs import RowLogprobs, decode_report, report, report_rows
from workers.sampling.sample_spec import SampleSpec
from workers.sampling.sampling_arrays import sampling_arrays
from workers.sampling.top_candidates import UNDECIDED

Call = Callable[..., Iterable[rt.HalBufferView]]
_Results = Results | Sequence[rt.HalBufferView]


class _Last(NamedTuple):
    """A call's results, with logits on the device, the tokens of all their rows, and the caller's rows among them."""

    result: _Results
    tokens: list[int]
    output_indices: Sequence[int]


class Sampler:
    """Samples tokens. Owns the last step's logits until the next one, for their log-probabilities."""

    def __init__(self, device: Device, graphs: GraphRegistry, call: Call, plan: GraphPlan) -> None:
        """`call` runs a graph that is ready."""
        self._device = device
        self._graphs = graphs
        self._call = call
        self._vocab_size = plan.config.vocab_size
        self._sizes = plan.sample_sizes
        self._draft_sizes = (plan.draft_rows,)
        self._last: _Last | None = None

    def forget(self) -> None:
        """Release the last step's logits."""
        self._last = None

    def sample(
        self,
        result: _Results,
        specs: Sequence[SampleSpec | None],
        output_indices: Sequence[int],
        greedy: list[int] | None = None,
    ) -> list[int | None]:
        """Return the tokens of the rows at these indices; None for a row with non-finite logits.

        `result` has greedy tokens and logits of all rows; `greedy` are these tokens, if the host has them already.
        """
        if sampling.needs_sampling([spec for spec in specs if spec is not None]):
            sampled = self._sample(result[1], [spec or _FILLER for spec in specs])
        else:
            sampled = self._device.numbers(result[0]) if greedy is None else greedy
        self._last = _Last(result, sampled, output_indices)
        return [sampled[index] if sampled[index] >= 0 else None for index in output_indices]

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """See `workers.engine.runner.Runner.logprobs`. Raises `RuntimeError` when the last step sampled nothing."""
        if self._last is None:
            raise RuntimeError("no token was sampled by the last call")
        result, sampled, output_indices = self._last
        logits = result[1]
        indices, tokens = [output_indices[row] for row in rows], np.array(sampled, np.int32)
        if size := self._covering("report", len(sampled)):
            tokens = np.pad(tokens, (0, size - len(sampled)))
            results = self._call(f"report_{size}", self._padded(logits, size), self._device.upload(tokens))
            ids, distance, mass = (self._device.download(each)[indices] for each in results)
        else:
            ids, distance, mass = report(np, self._device.download(logits)[indices], tokens[indices])
        return decode_report(ids, distance, mass, self._vocab_size)

    def reports(self, rows: int) -> bool:
        """A graph is ready that reports so many rows."""
        return self._covering("report", min(rows, self._sizes[-1])) is not None

    def reports_of(self, result: _Results, count: int, tokens: Sequence[int]) -> list[RowLogprobs]:
        """Return the log-probabilities of given tokens, one for each of the first `count` rows, or for all but
        the last of them. `result` as in `sample`. Raises `NotFiniteError` unless the logits of all these rows are
        finite."""
        greedy, logits = self._device.numbers(result[0]), result[1]
        if min(greedy[:count]) < 0:
            raise NotFiniteError
        if not self.reports(len(tokens)):
            return report_rows(self._device.window(logits)[:count], tokens)
        if logits.shape[0] == self._covering("report", len(tokens)):
            return self._report_rows(logits, tokens)
        out: list[RowLogprobs] = []
        values, most = self._device.window(logits), self._sizes[-1]
        for at in range(0, len(tokens), most):
            some = tokens[at : at + most]
            size = self._covering("report", len(some)) or most
            rows, missing = values[at : at + len(some)], size - len(some)
            padded = np.pad(rows, ((0, missing), (0, 0))) if missing else rows
            out += self._report_rows(self._device.upload(padded), some)
        return out

    def _report_rows(self, logits: rt.HalBufferView, tokens: Sequence[int]) -> list[RowLogprobs]:
        """Report given tokens by the graph that takes as many rows as `logits` has."""
        size, count = logits.shape[0], len(tokens)
        padded = np.pad(np.array(tokens, np.int32), (0, size - count))
        results = self._call(f"report_{size}", logits, self._device.upload(padded))
        ids, distance, mass = (self._device.download(each)[:count] for each in results)
        return decode_report(ids, distance, mass, self._vocab_size)

    @np.errstate(over="ignore", invalid="ignore")  # padding rows may hold anything, and so may a row that fails
    def _sample(self, logits: rt.HalBufferView, specs: Sequence[SampleSpec]) -> list[int]:
        """Return the tokens of all rows, from one call where the graphs are ready."""
        if any(spec.edits is not None or spec.mask is not None for spec in specs):
            if size := self._covering("edit", len(specs)):  # which is one module with "mask"
                filled = [*specs, *[_FILLER] * (size - len(specs))]
                logits = self._change(self._padded(logits, size), filled)
            else:
                logits = self._device.upload(process_logits(np, self._device.download(logits), specs))
        sample = self._all_at_once if SAMPLE in self._graphs else self._in_turn
        return sample(logits, specs)[: len(specs)]

    def _all_at_once(self, logits: rt.HalBufferView, specs: Sequence[SampleSpec]) -> list[int]:
        filled = [*specs, *[_FILLER] * (logits.shape[0] - len(specs))]
        words = [values.view(np.int32) for values in sampling_arrays(filled)]
        (tokens,) = self._call(SAMPLE, logits, self._device.upload(np.stack(words, axis=1)))
        return self._device.numbers(tokens)

    def _in_turn(self, logits: rt.HalBufferView, specs: Sequence[SampleSpec]) -> list[int]:
        """Sample from the top candidates first, and by the filters where these do not decide; by numpy where a graph is
        not ready. A row with typical_p or XTC takes all rows to the graph that has them."""
        filters = sampling.needs_filters(specs)
        if sampling.needs_rare_filters(specs):
            tokens = self._tokens("full", logits, specs)
        else:
            tokens = self._tokens("narrow" if filters else "unfiltered", logits, specs)
            if tokens is None or UNDECIDED in tokens[: len(specs)]:
                tokens = self._tokens("filter", logits, specs) if filters else None
        if tokens is None:
            some = self._device.download(logits)[: len(specs)]
            tokens = list(sampling.sample(np, some, sampling_arrays(specs), filters=filters).tolist())
        return tokens

    def _tokens(self, kind: str, logits: rt.HalBufferView, specs: Sequence[SampleSpec]) -> list[int] | None:
        size = self._covering(kind, logits.shape[0])
        if size is None:
            return None
        filled = [*specs, *[_FILLER] * (size - len(specs))]
        arrays = sampling_arrays(filled)
        wanted = [self._device.upload(values) for values in (arrays if kind == "full" else arrays.common).given]
        (tokens,) = self._call(f"{kind}_{size}", self._padded(logits, size), *wanted)
        return self._device.numbers(tokens)

    def _change(self, logits: rt.HalBufferView, specs: Sequence[SampleSpec]) -> rt.HalBufferView:
        """Return the logits with edits and masks applied; the given ones do not change where they are reported."""
        upload, size = self._device.upload, len(specs)
        words = stack_masks(specs, self._vocab_size)
        if words is None and any(spec.sampling.logprobs is not None for spec in specs):
            words = allow_all(size, self._vocab_size)  # for a copy: edits are made in place
        if words is not None:
            (logits,) = self._call(f"mask_{size}", logits, upload(words))
        for arrays in edit_calls(specs):
            (logits,) = self._call(f"edit_{size}", logits, *map(upload, arrays))
        return logits

    def _covering(self, kind: str, rows: int) -> int | None:
        """Return the rows of the smallest graph that is ready and takes as many."""
        return self._graphs.covering(kind, self._sizes if rows <= self._sizes[-1] else self._draft_sizes, rows)

    def _padded(self, logits: rt.HalBufferView, rows: int) -> rt.HalBufferView:
        """Return the logits with padding rows, for a larger graph: a copy costs less than sampling by numpy."""
        missing = rows - logits.shape[0]
        if not missing:
            return logits
        return self._device.upload(np.pad(self._device.download(logits), ((0, missing), (0, 0))))


_FILLER = SampleSpec(Sampling(), 0)
"""For rows that are not sampled."""
