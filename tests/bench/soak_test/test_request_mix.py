"""The requests of a soak: their variety, and that a seed repeats them."""

import itertools
import json
import random

import pytest

from bench.soak_test.request_mix import deterministic, requests, visits
from gateway.openai.decoding import RequestDecoder
from gateway.settings import GatewaySettings

MIX = requests(random.Random("a"), 300, longest=40, tokens=60)


def test_a_seed_gives_the_same_requests_and_visits() -> None:
    assert requests(random.Random("a"), 300, longest=40, tokens=60) == MIX
    assert requests(random.Random("b"), 300, longest=40, tokens=60) != MIX
    one, other = (list(itertools.islice(visits(random.Random("c"), 9), 50)) for _ in range(2))
    assert one == other


def test_all_requests_differ() -> None:
    assert len({repr(request) for request in MIX}) == 300


def test_the_gateway_takes_each_of_them() -> None:
    decoder = RequestDecoder(GatewaySettings())
    for request in MIX:
        decode = decoder.chat if "messages" in request.body else decoder.completion
        decoded = decode(json.dumps(request.body).encode()).request
        assert len(decoded.sequences) == request.choices
        assert decoded.output.stream == request.streaming


@pytest.mark.parametrize("field", ["stop", "seed", "n", "stream", "ignore_eos", "frequency_penalty", "messages"])
def test_some_have_a_field_and_some_do_not(field: str) -> None:
    assert 0 < sum(field in request.body for request in MIX) < len(MIX)


def test_a_request_sampled_without_a_seed_has_no_reference() -> None:
    assert {deterministic(request) for request in MIX} == {True, False}
    for request in MIX:
        assert deterministic(request) == (request.body["temperature"] == 0.0 or "seed" in request.body)


def test_some_clients_leave() -> None:
    seen = list(itertools.islice(visits(random.Random(1), 9), 1000))
    left = [visit.leave for visit in seen if visit.leave is not None]
    assert 100 < len(left) < 500
    assert {leave.abruptly for leave in left} == {True, False}
    assert {visit.request for visit in seen} == set(range(9))
