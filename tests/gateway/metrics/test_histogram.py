"""The histogram counts as prometheus_client's own does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Reference

from gateway.metrics.histogram import Histogram
from gateway.metrics.worker_collector import SECONDS


@given(st.lists(st.tuples(st.sampled_from(SECONDS) | st.floats(0, 1e4), st.integers(1, 4)), max_size=20))
def test_it_agrees_with_the_library(values: list[tuple[float, int]]) -> None:
    ours = Histogram(SECONDS)
    theirs = Reference("x", "x", buckets=SECONDS, registry=CollectorRegistry())
    for value, count in values:
        ours.observe(value, count)
        for _ in range(count):
            theirs.observe(value)
    (family,) = theirs.collect()
    expected = {sample.labels.get("le"): sample.value for sample in family.samples if sample.name == "x_bucket"}
    assert dict(ours.buckets()) == expected
    assert ours.count == expected["+Inf"]
