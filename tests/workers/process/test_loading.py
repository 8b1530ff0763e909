"""Loading a scripted worker: what it needs, what it refuses, and the warm-up."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog
from msgspec import structs
from structlog.testing import capture_logs

from protocol.events import Capabilities
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.json_files import CheckpointError
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, RunnerCapabilities
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.engine.tier.prefix_tier import PrefixTier
from workers.errors import LoadRefused
from workers.pooling.served_pooling import ServedPooling
from workers.prefix_store.entry import stored_size
from workers.process import loading
from workers.process.draft_loading import drafter_of
from workers.process.loading import kv_tokens, load, make_speculator, memory_bytes, prefix_tier, warm_up
from workers.process.spec import ScriptedSpec, WorkerSpec
from workers.process.startup.served_capabilities import served_capabilities
from workers.process.startup.state_cache import state_cache_bytes
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.pooling import ScriptedPooling
from workers.scripted.runner import STATE_BYTES, ScriptedRunner
from workers.text.byte_tokenizer import ByteTokenizer


def test_a_scripted_worker_needs_no_files() -> None:
    phases: list[tuple[str, int, int]] = []
    loaded = load(scripted(context=64, max_batch_size=3), lambda *progress: phases.append(progress))
    assert isinstance(loaded.tokenizer, ByteTokenizer)
    assert loaded.context == 64
    assert loaded.engine.gauges().steps == 0
    assert phases[0] == ("start backend", 0, 1)


@pytest.mark.parametrize(
    ("pooling", "features"),
    [
        (
            "vectors",
            Capabilities(
                chat=True,
                prompt_logprobs=True,
                logprobs=True,
                grammar=True,
                infill=True,
                vector_width=8,
                pooling_prompts=("document", "query"),
            ),
        ),
        ("encoder", Capabilities(generates=False, vector_width=8, pooling_prompts=("document", "query"))),
        ("pairs", Capabilities(generates=False, labels=1, pairs=True)),
    ],
)
def test_a_model_that_generates_nothing_has_no_feature_of_answers(
    pooling: ScriptedPooling, features: Capabilities
) -> None:
    loaded = load(scripted(context=64, pooling=pooling), lambda *progress: None)
    assert served_capabilities(loaded, embeddings=False) == features
    if pooling == "pairs":
        assert loaded.pooling.classifier is not None
        last = replace(loaded, pooling=replace(loaded.pooling, classifier=Mock(last=True)))
        assert served_capabilities(last, embeddings=False) == structs.replace(features, decoder_scores=True)


def test_a_failed_load_closes_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedRunner] = []
    monkeypatch.setattr(ScriptedRunner, "close", lambda runner: closed.append(runner))
    with pytest.raises(LoadRefused, match="kv_bytes: 504 bytes hold 63 tokens, fewer than the context of 64"):
        load(scripted(context=64, kv_bytes=504), lambda *progress: None)
    assert len(closed) == 1


def test_a_pooling_that_cannot_be_read_closes_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedRunner] = []

    def refuse(*_: Any) -> ServedPooling:
        raise CheckpointError("modules.json", "type", "has no Pooling module")

    monkeypatch.setattr(ScriptedRunner, "close", lambda runner: closed.append(runner))
    monkeypatch.setattr(loading, "scripted_pooling", refuse)
    with pytest.raises(CheckpointError, match="no Pooling module"):
        load(scripted(context=64), lambda *progress: None)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("kv_bytes", "kv_rows", "rows"), [(0, 0, None), (0, 700, 700), (640 * 3 + 2, 700, 640), (512 * 3, 0, 512)]
)
def test_kv_tokens_follow_the_setting_or_the_runners_memory(kv_bytes: int, kv_rows: int, rows: int | None) -> None:
    capabilities = RunnerCapabilities("", "", "float32", 4, 512, 9, (8,), row_bytes=3, kv_rows=kv_rows)
    assert kv_tokens(scripted(kv_bytes=kv_bytes), capabilities) == rows
    with pytest.raises(LoadRefused, match="hold 511 tokens, fewer than the context of 512"):
        kv_tokens(scripted(kv_bytes=512 * 3 - 1), capabilities)


@pytest.mark.parametrize(("step_tokens", "chunks"), [(1, 1), (16, 1), (17, 2), (512, 32)])
def test_the_warm_up_returns_the_duration_of_a_full_step(step_tokens: int, chunks: int) -> None:
    times = iter([100.0, 102.0, 102.5])  # 2 s for the smallest chunk, which holds 16 tokens, and 0.5 s for the row
    assert warm_up(ScriptedRunner(), step_tokens, lambda: next(times)) == 2.0 * chunks + 0.5


def test_the_warm_up_leaves_the_runner_unchanged() -> None:
    warm, cold = ScriptedRunner(), ScriptedRunner()
    warm_up(warm, 512)
    assert (warm._history, warm.violations) == (cold._history, [])
    assert warm.calls == 2


class NanRunner(ScriptedRunner):
    """A model whose logits are NaN from some call on."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        tokens = super().prefill(chunks, specs)
        return [None] if self.at == "prefill" else tokens

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        super().decode(rows)
        return [None]


@pytest.mark.parametrize("at", ["prefill", "decode"])
def test_a_model_with_nan_logits_is_refused(at: str) -> None:
    with pytest.raises(LoadRefused, match=r"the model's logits are NaN or infinite: its weights are damaged$"):
        warm_up(NanRunner(at), 512)


def test_a_refused_load_names_what_set_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LoadRefused("device: 'cuda' cannot be opened")

    monkeypatch.setattr(loading, "load_runner", refuse)
    for sources, text in (({"device": "BATON_DEVICE"}, "BATON_DEVICE: 'cuda' cannot"), ({}, "device: 'cuda' cannot")):
        spec = WorkerSpec("w0", "m", "/m", backend="scripted", sources=sources)
        with pytest.raises(LoadRefused, match=f"^{text}"):
            load(spec, lambda phase, done, total: None)


def capabilities(**fields: Any) -> RunnerCapabilities:
    return RunnerCapabilities("mlx", "gpu", "float16", 4, 64, 100, (4,), **fields)


def test_nothing_drafts_if_the_setting_forbids_it() -> None:
    able = capabilities(exact_rows=True, decode_rows=8)
    assert make_speculator(scripted(), able) is not None
    assert make_speculator(structs.replace(scripted(), speculate="off"), able) is None


def test_a_tier_too_small_for_a_block_is_refused_if_it_was_set_and_off_otherwise(tmp_path: Path) -> None:
    runner = ScriptedRunner()
    least = PrefixTier.least_bytes(runner.capabilities)
    named = scripted(prefix_cache_bytes=least, prefix_cache_dir=str(tmp_path / "prefixes"))
    named = structs.replace(named, sources={"prefix_cache_bytes": "--prefix-cache-bytes"})
    tier = prefix_tier(named, runner)
    assert tier is not None
    tier.close()
    small = structs.replace(named, prefix_cache_bytes=least - 1)
    with pytest.raises(LoadRefused, match=f"^prefix_cache_bytes: a block .* takes {least}, more than {least - 1}: set"):
        prefix_tier(small, runner)
    with capture_logs() as logs:
        assert prefix_tier(structs.replace(small, sources={}), runner) is None
    assert [(log["event"], log["log_level"]) for log in logs] == [("prefix_tier_off", "info")]


def test_states_take_a_share_of_the_free_memory_unless_their_bytes_are_set() -> None:
    stateful = capabilities(state_bytes=1000)
    least = 1000 + OVERHEAD_BYTES
    assert state_cache_bytes(scripted(), capabilities(), 1 << 40) == 0
    assert state_cache_bytes(structs.replace(scripted(), prefix_cache=False), stateful, 1 << 40) == 0
    assert state_cache_bytes(structs.replace(scripted(), state_cache_bytes=0), stateful, 1 << 40) == 0
    assert state_cache_bytes(scripted(), stateful, 1 << 40) == 1_000_000_000
    assert state_cache_bytes(structs.replace(scripted(), workers=2), stateful, 32 * least) == least
    with capture_logs() as logs:
        assert state_cache_bytes(structs.replace(scripted(), workers=2), stateful, 32 * least - 32) == 0
    assert [(log["event"], log["log_level"]) for log in logs] == [("state_cache_off", "info")]


def test_a_state_cache_too_small_for_a_state_is_refused_if_it_was_set() -> None:
    stateful, least = capabilities(state_bytes=1000), 1000 + OVERHEAD_BYTES
    asked = scripted(state_cache_bytes=least, sources={"state_cache_bytes": "--state-cache-bytes"})
    with capture_logs() as logs:
        assert state_cache_bytes(asked, stateful, 0) == least
    assert [(log["event"], log["bytes"], log["states"]) for log in logs] == [("state_cache", least, 1)]
    with pytest.raises(LoadRefused, match=f"^state_cache_bytes: .* takes {least}, more than {least - 1}: set {least}"):
        state_cache_bytes(structs.replace(asked, state_cache_bytes=least - 1), stateful, 0)


def test_the_memory_of_a_worker_has_all_states_of_its_slots() -> None:
    given = {"weight_bytes": 1000, "row_bytes": 2, "state_bytes": 16}
    assert memory_bytes(capabilities(), 50) == 0
    assert memory_bytes(capabilities(**given), 50) == 1000 + 100 + 4 * 16
    assert memory_bytes(capabilities(**given, rollback_rows=8), 50) == 1000 + 100 + 4 * 9 * 16
    rings = {"window_rows": 30, "window_reach": 9, "window_bytes": 500}  # whose state is a copy of some of their rows
    assert memory_bytes(capabilities(**given, **rings, rollback_rows=8), 50) == 1000 + 100 + 4 * 500


def test_a_draft_model_with_a_recurrent_state_is_refused() -> None:
    draft = ScriptedRunner(decode_rows=4, state_bytes=STATE_BYTES, rollback_rows=4)
    with pytest.raises(LoadRefused, match="draft_model: it has a recurrent state"):
        drafter_of(draft)


def test_a_tier_needs_a_cache_of_the_recurrent_states_and_rows(tmp_path: Path) -> None:
    spec = scripted(prefix_cache_bytes=1 << 20, prefix_cache_dir=str(tmp_path / "prefixes"))
    stateful, rowless = ScriptedRunner(state_bytes=STATE_BYTES), ScriptedRunner(state_bytes=STATE_BYTES, row_bytes=0)
    with capture_logs() as logs:
        assert prefix_tier(spec, stateful) is None
        assert prefix_tier(spec, rowless, 1 << 20) is None
    assert [log["reason"] for log in logs] == [
        "the model has a recurrent state, and the cache of states (state_cache_bytes) is off",
        "the model has no cached rows",
    ]
    tier = prefix_tier(spec, stateful, 1 << 20)
    assert tier is not None
    tier.close()
    least = PrefixTier.least_bytes(stateful.capabilities)
    assert least == PrefixTier.least_bytes(ScriptedRunner().capabilities) + stored_size(STATE_BYTES)


@pytest.mark.parametrize(("sources", "level"), [({}, "info"), ({"prefix_cache_bytes": "a file"}, "warning")])
def test_a_tier_that_cannot_be_is_a_warning_only_if_it_was_set(
    tmp_path: Path, sources: dict[str, str], level: str
) -> None:
    path = tmp_path / "open"
    path.mkdir(mode=0o755)
    spec = scripted(prefix_cache_bytes=1 << 20, prefix_cache_dir=str(path), sources=sources)
    with capture_logs() as logs:
        assert prefix_tier(spec, ScriptedRunner()) is None
        assert prefix_tier(spec, ScriptedRunner(exact_rows=False)) is None
    assert [(log["event"], log["log_level"]) for log in logs] == [("prefix_tier_off", level)] * 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "on gpu a row of several in a step may have other bits than one alone"),
        ({"exact_rows": True, "decode_rows": 1}, "a step has one row for each sequence"),
        (
            {"exact_rows": True, "decode_rows": 8, "state_bytes": 16, "rollback_rows": 1},
            "the model has a recurrent state, from which rejected drafts cannot be taken back",
        ),
    ],
    ids=["rows are not exact", "a single row", "a recurrent state"],
)
def test_nothing_drafts_where_drafts_cannot_be_verified(fields: dict[str, Any], reason: str) -> None:
    with structlog.testing.capture_logs() as logs:
        assert make_speculator(scripted(), capabilities(**fields)) is None
    assert [(each["event"], each["reason"]) for each in logs] == [("speculation_off", reason)]


def test_a_head_that_drafts_nothing_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedRunner, "draft_head", object())
    assert not load(scripted(), lambda *_: None).mtp
    able = structs.replace(scripted(), scripted=ScriptedSpec(drafts=True))
    assert load(able, lambda *_: None).mtp


def test_a_worker_drafts_by_default() -> None:
    """Steps take as long with more rows. Where other programs slow the measured ones down, drafts are tried later."""
    spec = structs.replace(scripted(), scripted=ScriptedSpec(tokens_per_second=500, drafts=True))
    engine = load(spec, lambda *_: None).engine
    for stream in range(1, 101):
        engine.submit(EngineRequest(stream, (97,) * 40, max_tokens=200, constraint=AllowedTokens((97,), 257)))
        while not engine.idle and not engine.gauges().accepted_tokens:
            engine.step()
        if engine.gauges().accepted_tokens:
            return
    pytest.fail("no draft was accepted")
