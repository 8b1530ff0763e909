"""Samples of a server: sums over labels, rates between two samples, and quantiles as Prometheus computes them."""

from typing import Any

import httpx
import pytest

from cli.client.administration import Administration
from cli.client.load_sample import LoadChange, LoadSample, take_sample
from cli.config.errors import CommandFailed

TEXT = """
# TYPE tokens counter
tokens_total{model="m",worker="a"} 3
tokens_total{model="m",worker="b"} 4
tokens_total{model="n",worker="c"} 5
# TYPE wait histogram
wait_bucket{model="m",worker="a",le="1.0"} 2
wait_bucket{model="m",worker="a",le="2.0"} 6
wait_bucket{model="m",worker="a",le="+Inf"} 8
wait_count{model="m",worker="a"} 8
wait_sum{model="m",worker="a"} 12
"""


def sample(text: str = TEXT, at: float = 0.0, workers: Any = ()) -> LoadSample:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=text)
        return httpx.Response(200, json={"workers": workers})

    client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer))
    return take_sample(Administration(client), lambda: at)


def test_values_are_summed_over_the_series_that_have_the_labels() -> None:
    one = sample()
    assert one.total("tokens_total") == 12
    assert one.total("tokens_total", model="m") == 7
    assert one.total("tokens_total", model="m", worker="b") == 4
    assert one.total("nothing") == 0
    assert one.by("tokens_total", "model") == {"m": 7, "n": 5}
    assert len(one.series("wait_bucket", model="m")) == 3


def test_rates_are_of_the_time_between_the_samples() -> None:
    later = sample(TEXT.replace('worker="a"} 3', 'worker="a"} 23'), at=4.0)
    change = LoadChange(sample(), later)
    assert change.count("tokens_total", model="m") == 20
    assert change.rate("tokens_total", model="m") == 5
    assert change.rate("tokens_total", model="n") == 0
    assert LoadChange(later, later).rate("tokens_total") == 0


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    change = LoadChange(sample(), sample(TEXT.replace('worker="a"} 3', 'worker="a"} 2'), at=1.0))
    assert change.count("tokens_total") == 2
    assert change.quantile(0.5, "wait") is None


def test_a_worker_that_leaves_takes_its_counts_along() -> None:
    without_a = TEXT.replace('tokens_total{model="m",worker="a"} 3', "").replace('worker="b"} 4', 'worker="b"} 6')
    assert LoadChange(sample(), sample(without_a, at=1.0)).count("tokens_total") == 2


@pytest.mark.parametrize(
    ("part", "expected"), [(0.125, 0.5), (0.25, 1.0), (0.5, 1.5), (0.75, 2.0), (0.99, 2.0)], ids=str
)
def test_a_quantile_is_interpolated_within_its_bucket(part: float, expected: float) -> None:
    """Above the last bound it is that bound."""
    assert LoadChange(sample(""), sample(at=1.0)).quantile(part, "wait") == expected


def test_a_quantile_is_of_what_was_observed_between_the_samples() -> None:
    before, now = sample(), sample(TEXT.replace('le="2.0"} 6', 'le="2.0"} 7').replace('"} 8', '"} 9'), at=1.0)
    assert LoadChange(before, now).quantile(0.5, "wait") == 1.5
    assert LoadChange(now, now).quantile(0.5, "wait") is None
    assert LoadChange(now, now).quantile(0.5, "nothing") is None


@pytest.mark.parametrize(
    ("metrics", "workers", "words"),
    [("tokens_total{", [], "not in Prometheus' text format"), (TEXT, None, "as a Baton server does")],
    ids=["metrics", "workers"],
)
def test_another_server_is_refused(metrics: str, workers: Any, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        sample(metrics, workers=workers)


def test_the_refusal_of_metrics_is_shown() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(401, json={"error": {"message": "a valid API key is needed"}})
        return httpx.Response(200, json={"workers": []})

    client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer))
    with pytest.raises(CommandFailed, match="a valid API key is needed"):
        take_sample(Administration(client))
