"""The picture of `baton top`, from scripted samples."""

from typing import Any

import pytest
from rich.console import Console

from cli.client.load_sample import Labels, LoadChange, LoadSample
from cli.terminal.top_view import MAX_FAILURES, MAX_SLOT_MARKS, slots, top_view
from tests.cli.terminal.test_worker_table import WORKER

SERVES = {**WORKER, "state": "ready", "role": "active", "reason": "", "last_failure": None, "restarts": 0}


def labels(**named: str) -> Labels:
    return tuple(sorted(named.items()))


def drawn(now: LoadSample, before: LoadSample | None = None, width: int = 400) -> list[list[str]]:
    console = Console(width=width, highlight=False, file=None)
    with console.capture() as capture:
        console.print(top_view(LoadChange(before or now, now), "http://server"))
    return [line.split() for line in capture.get().splitlines()]


def test_the_load_of_a_model_and_of_its_worker() -> None:
    of_worker = labels(model="m", backend="scripted", worker="w0")
    before = LoadSample(0.0, [SERVES], {"baton_batch_decode_tokens_total": {of_worker: 100}})
    values: dict[str, dict[Labels, float]] = {
        "baton_batch_decode_tokens_total": {of_worker: 300},
        "baton_batch_prefill_tokens_total": {of_worker: 30},
        "baton_prefix_cache_tokens_total": {of_worker: 10},
        "baton_worker_ready": {of_worker: 1},
        "baton_live_sequences": {of_worker: 4},
        "baton_queue_depth": {of_worker: 3},
        "baton_waiting_sequences": {labels(model="m"): 2},
        "baton_kv_tokens": {of_worker: 25},
        "baton_kv_capacity_tokens": {of_worker: 100},
        "baton_worker_memory_bytes": {of_worker: 1_230_000_000},
        "baton_sequences_ended_total": {labels(**dict(of_worker), outcome="stop"): 4},
        "baton_inter_token_latency_seconds_bucket": {
            labels(**dict(of_worker), le="0.01"): 10,
            labels(**dict(of_worker), le="+Inf"): 10,
        },
    }
    title, _, model, _, worker = drawn(LoadSample(2.0, [SERVES], values), before)
    assert title == ["Baton", "at", "http://server"]
    assert model == ["m", "1", "1", "5", "100", "15", "25%", "-", "5/9.9", "ms", "2.0"]
    assert worker == ["w0", "m", "█░░░░░░░", "1/8", "3", "25%", "1.23", "GB", "100", "0", "ready", "prefill"]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "200/396 ms"), (1.0, "500/990 ms"), (2.0, "1/2 s"), (60.0, "30/59 s")], ids=str
)
def test_both_quantiles_have_one_unit(seconds: float, shown: str) -> None:
    values = {
        "baton_time_to_first_token_seconds_bucket": {
            labels(model="m", worker="w0", le=str(seconds)): 10.0,
            labels(model="m", worker="w0", le="+Inf"): 10.0,
        }
    }
    _, _, model, *_ = drawn(LoadSample(1.0, [SERVES], values), LoadSample(0.0, [SERVES]))
    assert shown in " ".join(model)


def test_no_figure_is_cut_off_on_a_terminal_of_80_columns() -> None:
    name = "a-model-with-a-long-name"
    worker = {**SERVES, "model": name, "slots_total": 64}
    of_worker = labels(model=name, worker="w0")
    figures = {"baton_batch_decode_tokens_total": {of_worker: 123456.0}, "baton_worker_memory_bytes": {of_worker: 2e9}}
    for latency in ("time_to_first_token", "inter_token_latency"):
        buckets = {labels(**dict(of_worker), le=bound): 9.0 for bound in ("0.5", "+Inf")}
        figures[f"baton_{latency}_seconds_bucket"] = buckets
    lines = drawn(LoadSample(1.0, [worker], figures), LoadSample(0.0, [worker]), width=80)
    words = [word for line in lines for word in line]
    assert words.count("123,456") == 2
    assert words.count("250/495") == 2
    assert "1/64" in words
    assert not [word for word in words if "…" in word]


def test_what_is_not_reported_yet_is_a_dash() -> None:
    *_, worker = drawn(LoadSample(0.0, [{**SERVES, "state": "loading", "slots_total": 0, "slots_active": 0}]))
    assert worker == ["w0", "m", "0/0", "3", "-", "-", "0", "0", "loading", "prefill"]


def test_failures_are_listed_the_most_urgent_first() -> None:
    ended = {labels(worker="w0", outcome="worker_lost"): 3.0, labels(worker="w0", outcome="length"): 5.0}
    replays = {labels(cause="died", outcome="resumed"): 2.0}
    before = LoadSample(0.0, [WORKER], {})
    now = LoadSample(1.0, [WORKER], {"baton_sequences_ended_total": ended, "baton_replays_total": replays})
    failures = [" ".join(line) for line in drawn(now, before)[5:]]
    assert failures == [
        "w0: given_up: it [left]",
        "3 sequences ended with worker_lost, 3 of them just now",
        "2 sequences that lost their worker: resumed",
        "w0 was lost 62 s ago (within): it [left] (internal_error)",
    ]


def test_no_more_failures_are_listed_than_fit() -> None:
    workers: list[dict[str, Any]] = [{**WORKER, "name": f"w{number}"} for number in range(20)]
    assert len(drawn(LoadSample(0.0, workers))) == 4 + 20 + MAX_FAILURES


@pytest.mark.parametrize(
    ("active", "total", "filled", "marks"),
    [
        (0, 8, 0, 8),
        (8, 8, 8, 8),
        (1, 256, 1, MAX_SLOT_MARKS),
        (255, 256, MAX_SLOT_MARKS, MAX_SLOT_MARKS),
        (128, 256, MAX_SLOT_MARKS // 2, MAX_SLOT_MARKS),
    ],
)
def test_a_bar_has_a_mark_for_each_slot_as_far_as_they_fit(active: int, total: int, filled: int, marks: int) -> None:
    """A worker with a sequence never looks idle."""
    bar = slots(active, total).plain
    assert bar == "█" * filled + "░" * (marks - filled) + f" {active}/{total}"
