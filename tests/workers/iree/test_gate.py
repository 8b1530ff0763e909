"""Batch invariance: the reference gate, and bitwise identical logits."""

import random
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.failure_gate import run_failure_gate
from tests.gate import run_gate
from tests.prefix_gate import run_prefix_gate
from tests.sampled import sampled
from tests.workers.iree.conftest import CONTEXT, Load, fetch_all
from tests.workers.iree.cpus import skip_unless_possible
from tests.workers.rows_gate import run_rows_gate
from tests.workers.tier_gate import run_tier_gate
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.build.graph_list import SAMPLE
from workers.iree.runner import IreeRunner
from workers.precision import CpuTarget, Dtype, Quantize
from workers.sampling.sample_spec import SampleSpec

GREEDY = SampleSpec(Sampling(), 1)
SEEDED = SampleSpec(Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=11), 1)
TOKENS = tuple(int(token) for token in np.random.default_rng(3).integers(3, 500, 90))
ALL_STEPS = ("decode", "prefill", "edit_8", "report_8")
exhaustive = pytest.mark.exhaustive


class Rationed:
    """Gives a runner some of its graphs, as if the others had not been compiled yet, and notes which it takes."""

    def __init__(self, runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self._graphs = runner.graphs
        self._all = dict(self._graphs._ready)
        self._first = self._graphs.builder.plan.first()
        self._groups = self._graphs.builder.plan.everything()
        self._randomness = random.Random(5)
        self.taken: list[str] = []
        call = runner.graphs.call

        def noted(name: str, *arguments: Any) -> Any:
            self.taken.append(name)
            return call(name, *arguments)

        monkeypatch.setattr(runner.graphs, "call", noted)

    def only(self, *names: str) -> None:
        self._graphs._ready = {name: self._all[name] for name in names if name in self._all}

    def all(self) -> None:
        self.only(*self._all)

    def some(self) -> None:
        """The modules that a load waits for, and half of the others, by chance."""
        chosen = [group for group in self._groups if group in self._first or self._randomness.random() < 0.5]
        self.only(*(name for group in chosen for name in group))


def tour(buckets: tuple[int, ...]) -> list[int]:
    """A way through every transition between two size buckets, a size to itself included (Hierholzer)."""
    left = {size: list(buckets) for size in buckets}
    way, stack = [], [buckets[0]]
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            way.append(stack.pop())
    return way


def sizes(runner: IreeRunner, kind: str) -> tuple[int, ...]:
    """The sizes of the graphs of a kind that are ready."""
    return tuple(sorted(int(name.partition("_")[2]) for name in runner.graphs.ready if name.startswith(f"{kind}_")))


def check_transitions(runner: IreeRunner, monkeypatch: pytest.MonkeyPatch, spec: SampleSpec) -> None:
    """One sequence goes through every transition between buckets, and gets the tokens of the smallest graphs."""
    buckets, chunk_sizes = sizes(runner, "decode"), sizes(runner, "prefill")
    decodes, chunks = tour(buckets), tour(chunk_sizes)
    last = f"decode_{buckets[-1]}"
    with monkeypatch.context() as patch:
        rationed = Rationed(runner, patch)

        def generate(slot: int, buckets: bool) -> list[int]:
            tokens: list[int] = []
            for size in chunks:  # rows that are computed again come out the same
                rationed.only(f"prefill_{size}", last, SAMPLE)
                runner.prefill([Chunk(slot, TOKENS[:30], 0, 0)], [None])
            for step, size in enumerate(decodes):
                at = 30 + step % 60  # and from the start again, before the context ends
                rationed.only(f"decode_{size}" if buckets else "decode_1", last, SAMPLE)
                token = TOKENS[30] if at == 30 else tokens[-1]
                tokens += sampled(runner.decode([DecodeRow(slot, token, at, at, SampleSpec(spec.sampling, at + 1))]))
            return tokens

        expected = generate(0, buckets=False)
        rationed.taken.clear()
        assert generate(0, buckets=True) == expected
        taken = set(pairwise(name for name in rationed.taken if name.startswith(("decode", "prefill"))))
        assert taken >= set(product((f"decode_{size}" for size in buckets), repeat=2))
        assert taken >= set(product((f"prefill_{size}" for size in chunk_sizes), repeat=2))
        rationed.all()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "slots", "edited_here"), [("float32", 8, False), ("bfloat16", 32, True)])
def test_gate(load: Load, dtype: Dtype, slots: int, edited_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With graphs for edits in part of the steps, and without any of them; with more rows than a product's tile, then
    in the ends of the buckets and the bucket of 16: each graph takes seconds to compile."""
    runner = load(dtype=dtype, slots=slots)
    fetch_all(runner, *(("decode_1", "decode_16") if edited_here else ALL_STEPS))
    check_transitions(runner, monkeypatch, GREEDY)
    check_transitions(runner, monkeypatch, SEEDED)
    runner.reset(0)
    rationed = Rationed(runner, monkeypatch)
    report = run_gate(lambda: runner, requests=3 * slots + 24, step_tokens=12 * slots, before_step=rationed.some)
    assert report.requests >= 32
    assert report.most_active >= min(slots, 24)  # beyond the bucket of 16, and so in that of 32
    assert min(report.grammars, report.complete) > 0
    assert min(report.cancelled, report.resumed, report.stopped, report.full, report.masked, report.reported) > 0
    assert report.shared > 0
    assert report.prompts_reported > 3
    assert {f"prefill_{size}" for size in sizes(runner, "prefill")} <= set(rationed.taken)
    assert edited_here or {"edit_8", "mask_8", "report_8"} <= set(rationed.taken)
    assert SAMPLE in rationed.taken


def make_mixture(path: Path) -> Path:
    """A layer of experts, in matrices that groups divide, and a layer without."""
    fields = {"moe_intermediate_size": 64, "mlp_only_layers": [1], "shared_expert_intermediate_size": 96}
    return make_checkpoint(path, "qwen2_moe", tied=False, fields=fields)


def test_gate_while_requests_are_preempted(load: Load) -> None:
    report = run_gate(load, preempts=True, max_tokens=40)
    assert report.preemptions > 10
    assert min(report.grammars, report.reported, report.masked) > 0


def test_gate_with_drafts(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the graph that has more rows than there are slots."""
    rows: list[int] = []

    def make() -> IreeRunner:
        runner = load()
        assert runner.capabilities.draft_rows == 16
        assert [runner.fits(8), runner.fits(9)] == [True, False]
        fetch_all(runner, "decode_16")
        assert [runner.fits(16), runner.fits(17)] == [True, False]
        decode = runner.decode

        def counted(given: Sequence[DecodeRow]) -> list[int | None]:
            rows.append(len(given))
            return decode(given)

        monkeypatch.setattr(runner, "decode", counted)
        return runner

    report = run_gate(make, speculates=True, max_tokens=40)
    assert max(rows) > 12
    assert report.drafted > 50
    assert report.drafted * 0.3 < report.accepted < report.drafted
    assert min(report.grammars, report.reported, report.masked) > 0


def test_gate_with_a_draft_model(load: Load, tmp_path: Path) -> None:
    report = run_gate(load, make_draft=load, max_tokens=30)
    assert report.drafted > 50
    assert report.accepted == report.drafted, "the same model drafts what is sampled, as its noise is the same"
    assert min(report.grammars, report.reported, report.masked) > 0
    other = make_checkpoint(tmp_path / "draft", layers=1, seed=5)
    report = run_gate(load, make_draft=lambda: load(other), requests=32, longest=40, preempts=True)
    assert report.preemptions > 5
    assert 0 < report.accepted < report.drafted


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("int8", marks=exhaustive), "int4"])
def test_gate_with_quantized_weights(load: Load, tmp_path: Path, kind: Quantize) -> None:
    path = make_mixture(tmp_path / "model")
    report = run_gate(lambda: load(path, quantize=kind, dtype="bfloat16"), longest=70, requests=32, speculates=True)
    assert report.requests >= 32
    assert report.accepted > 20
    assert min(report.cancelled, report.resumed, report.stopped) > 0


@pytest.mark.slow
@exhaustive
@pytest.mark.parametrize(("cpu", "kind"), [("avx2", "none"), pytest.param("avx2", "int4", marks=exhaustive)])
def test_gate_with_the_instructions_of_lesser_cpus(load: Load, tmp_path: Path, cpu: CpuTarget, kind: Quantize) -> None:
    skip_unless_possible(cpu)
    path = make_mixture(tmp_path / "model")
    report = run_gate(lambda: load(path, quantize=kind, dtype="bfloat16", cpu=cpu), longest=70, requests=32)
    assert report.requests >= 32
    assert min(report.cancelled, report.resumed, report.stopped) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        pytest.param("gemma3_text", {"sliding_window": 9}, marks=exhaustive, id="windows"),
        pytest.param("qwen3_moe", {}, marks=exhaustive, id="experts"),
        pytest.param("glm4_moe", {}, marks=exhaustive, id="routed experts"),
        pytest.param("gpt_oss", {"sliding_window": 9}, marks=exhaustive, id="sinks"),
        pytest.param("granite", {}, id="multipliers"),
    ],
)
def test_gate_of_windows_experts_and_multipliers(
    load: Load, tmp_path: Path, family: str, fields: dict[str, int]
) -> None:
    tied = "moe" not in family and family != "gpt_oss"
    runner = load(make_checkpoint(tmp_path / "model", family, tied=tied, fields=fields))
    fetch_all(runner, "decode_1")
    report = run_gate(lambda: runner)
    assert (report.requests >= 32, report.most_active) == (True, 8)


@pytest.mark.slow
def test_what_rows_of_nobody_hold_reaches_nobody(load: Load, tmp_path: Path) -> None:
    """Neither by the experts that it would choose nor by the cache rows that it is written to: their token is 0, and
    what follows from it no number."""
    well, corrupted = (make_mixture(tmp_path / name) for name in ("well", "corrupted"))
    weights = load_file(corrupted / "model.safetensors")
    weights["model.embed_tokens.weight"][0] = np.nan
    save_file(weights, corrupted / "model.safetensors")

    def generate(path: Path) -> list[list[int | None]]:
        runner, slots = load(path), (3, 6, 0, 7, 1)
        try:
            for at, slot in enumerate(slots):
                runner.prefill([Chunk(slot, TOKENS[at:][:85], 0, 0)], [None])
            return [
                runner.decode([DecodeRow(slot, TOKENS[slot], at, at, SEEDED) for slot in slots[: CONTEXT - at]])
                for at in range(85, CONTEXT)
            ]
        finally:
            runner.close()

    tokens = generate(corrupted)
    assert all(token is not None for step in tokens for token in step)
    assert tokens == generate(well)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_rows_from_others_are_as_good_as_computed_ones(load: Load, dtype: Dtype) -> None:
    report = run_prefix_gate(lambda: load(dtype=dtype))
    assert report.hits > report.requests // 2
    assert min(report.in_place, report.copies) > 0


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_failed_request_costs_no_other_its_cached_rows(load: Load, kind: Any) -> None:
    run_failure_gate(load, kind)


class LogitsSpy:
    """Keeps the logits that the steps of a runner leave on the device."""

    def __init__(self, runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[NDArray[np.float32]] = []
        call, download = runner.graphs.call, runner._device.download

        def spy(name: str, *arguments: Any) -> Any:
            result = call(name, *arguments)
            if name.startswith(("decode", "head")):
                self.seen.append(download(result[1]))
            return result

        monkeypatch.setattr(runner.graphs, "call", spy)


def test_logits_are_equal_to_the_bit(runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    check_logits(runner, monkeypatch)


@pytest.mark.parametrize(
    ("family", "kind", "dtype", "cpu"),
    [
        ("qwen2_moe", "int4", "bfloat16", "host"),
        ("qwen2", "int8", "float32", "host"),
        pytest.param("gpt_neox", "int8", "bfloat16", "host", marks=exhaustive),
        ("qwen2", "int8", "bfloat16", "avx2"),
        pytest.param("qwen2", "int4", "bfloat16", "avx-vnni", marks=exhaustive),
        pytest.param("granite", "int8", "bfloat16", "host", marks=exhaustive),
        pytest.param("granite", "int4", "bfloat16", "host", marks=exhaustive),
    ],
)
def test_logits_with_quantized_weights_are_bitwise_identical(
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    kind: Quantize,
    dtype: Dtype,
    cpu: CpuTarget,
) -> None:
    """Layers with and without experts, a shared one too; down without groups, which is not quantized; parallel layers
    with LayerNorm and an MLP without a gate; and multipliers."""
    skip_unless_possible(cpu)
    path = tmp_path / "model"
    ffn = 48 if family == "qwen2" else 128
    path = make_mixture(path) if family == "qwen2_moe" else make_checkpoint(path, family, layers=1, ffn=ffn)
    runner = load(path, quantize=kind, dtype=dtype, cpu=cpu)
    fetch_all(runner, "decode_1", "decode_4")  # those between are the gate's; scores come from decoding
    assert runner.capabilities.quantization == kind
    check_logits(runner, monkeypatch)
    runner.close()


@pytest.mark.parametrize(
    ("device", "threads"),
    [("local-task", 5), ("local-task", 64), ("", 0)],
    ids=["five", "more than cores", "the one that asks"],
)
def test_the_number_of_threads_changes_no_bit(
    load: Load, runner: IreeRunner, monkeypatch: pytest.MonkeyPatch, device: str, threads: int
) -> None:
    """Five threads share the context of a row, as two do not that have a head each, and have a graph for short
    prompts. 64 are more than there are cores."""
    other = load(device=device, threads=threads)
    assert other.capabilities.device == (device or "local-sync")
    expected = runner.logits(Chunk(7, TOKENS, 0, 0))
    np.testing.assert_array_equal(other.logits(Chunk(7, TOKENS[:40], 0, 0)), expected[:40])  # by single steps
    spy = LogitsSpy(other, monkeypatch)
    other.prefill([Chunk(2, TOKENS, 0, 0)], [GREEDY])
    np.testing.assert_array_equal(spy.seen[-1][0], expected[-1])
    other.close()


def check_logits(runner: IreeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a row is computed: scored, prefilled in any chunks, decoded in any bucket, beside whatever neighbours."""
    expected = runner.logits(Chunk(7, TOKENS, 0, 0))
    spy = LogitsSpy(runner, monkeypatch)
    for length in (1, 20, 32, 33, 90):
        runner.reset(2)
        runner.prefill([Chunk(2, TOKENS[:length], 0, 0)], [GREEDY])
        np.testing.assert_array_equal(spy.seen[-1][0], expected[length - 1])
    company = ((0, ()), (7, (1,)), (3, (0, 6)), (5, (0, 1, 2, 4, 6)), (4, (0, 1, 2, 3, 5, 6)))
    for slot, neighbours in company:  # the buckets 1, 2 and 4, and that of 8 with six and with seven rows
        runner.reset(slot)
        for at, token in enumerate(TOKENS[:40]):
            rows = [DecodeRow(slot, token, at, at, GREEDY)]
            if at % 3 == 1:
                for other in neighbours:
                    runner.reset(other)
            if at % 3:  # the neighbours come and go
                rows += [DecodeRow(other, at, at % 3 - 1, at, GREEDY) for other in neighbours]
            runner.decode(rows)
            np.testing.assert_array_equal(spy.seen[-1][0], expected[at])
    runner.reset(5)
    runner.prefill([Chunk(5, TOKENS[:37], 0, 0)], [GREEDY])
    runner.prefill([Chunk(5, TOKENS[37:41], 37, 37)], [None])
    runner.decode([DecodeRow(5, TOKENS[41], 41, 41, GREEDY)])
    np.testing.assert_array_equal(spy.seen[-1][0], expected[41])
    check_shared_calls(runner, spy, expected)


def check_shared_calls(runner: IreeRunner, spy: LogitsSpy, expected: NDArray[np.float32]) -> None:
    """Chunks of several slots in one call: at their starts, behind other rows, without a sample, and of one row."""
    for slot in (1, 4, 6, 7):
        runner.reset(slot)
    runner.prefill([Chunk(4, TOKENS[:13], 0, 0)], [None])
    runner.prefill([Chunk(7, TOKENS[:40], 0, 0)], [None])
    parts = [(1, 0, 21), (4, 13, 30), (6, 0, 9), (7, 40, 41)]
    chunks = [Chunk(slot, TOKENS[start:end], start, start) for slot, start, end in parts]
    tokens = runner.prefill(chunks, [GREEDY, GREEDY, None, GREEDY])
    ends = [21, 30, 41]
    np.testing.assert_array_equal(spy.seen[-1][:3], expected[[end - 1 for end in ends]])
    greedy = expected.argmax(-1).tolist()
    assert tokens == [greedy[20], greedy[29], None, greedy[40]]
    assert runner.prefill([Chunk(6, TOKENS[9:10], 9, 9)], [GREEDY]) == [greedy[9]]
    np.testing.assert_array_equal(spy.seen[-1][0], expected[9])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=exhaustive)])
def test_rows_written_to_another_runner_are_as_good_as_computed_ones(load: Load, dtype: Dtype) -> None:
    """Neither the number of slots nor of threads matters."""
    one, other = load(dtype=dtype), load(dtype=dtype, slots=3, device="local-task", threads=2)
    try:
        run_rows_gate(one, other, 50, splits=(1, 16, 19, 48))
    finally:
        one.close()
        other.close()


def test_a_worker_restores_what_another_one_has_saved(load: Load, tmp_path: Path) -> None:
    run_tier_gate(load, tmp_path / "store")
