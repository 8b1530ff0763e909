"""Metrics of API keys: one series of each for a key that is accepted, of which the file has a bounded number."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class KeyUse(Struct, frozen=True, forbid_unknown_fields=True):
    """The use of one key since the gateway started."""

    requests: int
    """Requests that were admitted."""
    refused: int
    """Requests over a limit."""
    prompt_tokens: int
    completion_tokens: int
    live: int
    """Requests under way."""


class KeyCollector(Collector):
    """Reads the use of all keys at every scrape."""

    def __init__(self) -> None:
        self.uses: Callable[[], Mapping[str, KeyUse]] = dict
        """Returns the use of all keys, by name; set by their owner."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("baton_key_requests", "Requests admitted, by API key", labels=["key"])
        refused = CounterMetricFamily("baton_key_refused", "Requests over a limit of their API key", labels=["key"])
        tokens = CounterMetricFamily(
            "baton_key_tokens", "Tokens of prompts and answers, by API key", labels=["key", "kind"]
        )
        live = GaugeMetricFamily("baton_key_live_requests", "Requests under way, by API key", labels=["key"])
        for name, use in self.uses().items():
            requests.add_metric([name], use.requests)
            refused.add_metric([name], use.refused)
            tokens.add_metric([name, "prompt"], use.prompt_tokens)
            tokens.add_metric([name, "completion"], use.completion_tokens)
            live.add_metric([name], use.live)
        yield from (requests, refused, tokens, live)
