"""Headers of gateways in front: who is trusted, what a fairness id may be, and what it changes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actors.transport.log_limit import LogLimit
from gateway.errors import RequestError
from gateway.http.access.gateways import (
    FAIRNESS_HEADER,
    MAX_FAIRNESS_ID,
    OLD_FAIRNESS_HEADER,
    TrustedGateways,
)
from gateway.http.request_record import RequestRecords
from gateway.keys.record import KeyLimits, make_key, make_record
from gateway.settings import GatewaySettings, GatewaySettingsError
from gateway.tracing.traced_request import RequestTrace
from protocol.commands import TENANT_SALT
from tests.gateway.harness.serving import COMPLETION, Served, serving

FROM_LOOPBACK = ("127.0.0.0/8",)


def gateways(*trusted: str) -> TrustedGateways:
    return TrustedGateways(GatewaySettings(trusted_gateways=trusted))


def scope(client: str | None, *headers: tuple[str, bytes]) -> dict[str, Any]:
    return {
        "client": None if client is None else (client, 4711),
        "headers": [(name.encode(), value) for name, value in headers],
    }


@pytest.mark.parametrize(
    ("trusted", "client", "sent"),
    [
        ((), "127.0.0.1", False),
        ((), None, False),
        (("10.0.0.0/8",), "10.0.0.0", True),
        (("10.0.0.0/8",), "10.255.255.255", True),
        (("10.0.0.0/8",), "11.0.0.0", False),
        (("10.0.0.0/8",), "9.255.255.255", False),
        (("10.1.2.3",), "10.1.2.3", True),
        (("10.1.2.3",), "10.1.2.4", False),
        (("10.1.2.3",), "::ffff:10.1.2.3", True),
        (("fd00::/8",), "fd12::1", True),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("fd00::/8",), "10.1.2.3", False),
        (("10.0.0.0/8",), None, False),
        (("unix",), None, True),
        (("unix",), "127.0.0.1", False),
        (("fd00::/8", "10.1.2.3"), "10.1.2.3", True),
        (("0.0.0.0/0",), "not an address", False),
    ],
)
def test_a_gateway_is_trusted_by_the_address_of_its_connection(
    trusted: tuple[str, ...], client: str | None, sent: bool
) -> None:
    assert gateways(*trusted).sent(scope(client)) is sent
    assert gateways(*trusted).sent(scope("192.0.2.1", ("x-forwarded-for", (client or "").encode()))) is (
        "0.0.0.0/0" in trusted
    )


@pytest.mark.parametrize("text", ["", "example.org", "10.0.0.1/8", "10.0.0.0/33", "Unix", "*"])
def test_a_network_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"^trusted_gateways: .* is not an address, or a network"):
        GatewaySettings(trusted_gateways=("unix", text))


@pytest.mark.parametrize("header", [FAIRNESS_HEADER, OLD_FAIRNESS_HEADER])
@pytest.mark.parametrize("value", [b"a", b"team-a/user:1", b"~" * MAX_FAIRNESS_ID])
def test_a_fairness_id(header: str, value: bytes) -> None:
    trusted, given = gateways("10.0.0.0/8"), ((header, value),)
    assert trusted.fairness_id(scope("10.0.0.1", *given)) == value.decode()
    assert trusted.fairness_id(scope("192.0.2.1", *given)) == ""
    assert gateways().fairness_id(scope("10.0.0.1", *given)) == ""


def test_the_new_name_takes_precedence() -> None:
    both = ((OLD_FAIRNESS_HEADER, b"old"), (FAIRNESS_HEADER, b"new"))
    assert gateways("unix").fairness_id(scope(None, *both)) == "new"
    assert gateways("unix").fairness_id(scope(None)) == ""


@pytest.mark.parametrize("header", [FAIRNESS_HEADER, OLD_FAIRNESS_HEADER])
@pytest.mark.parametrize(
    "values",
    [[b""], [b"a b"], [b"a\tb"], [b"\xc3\xa4"], [b"\x7f"], [b"a\n"], [b"~" * (MAX_FAIRNESS_ID + 1)], [b"a", b"a"]],
)
def test_an_invalid_fairness_id_is_refused_by_name_if_its_sender_is_trusted(header: str, values: list[bytes]) -> None:
    given = [(header, value) for value in values]
    with pytest.raises(RequestError, match=f"the header `{header}` must have one value of 1 to 128") as caught:
        gateways("10.0.0.0/8").fairness_id(scope("10.0.0.1", *given))
    assert caught.value.field == header
    assert gateways("10.0.0.0/8").fairness_id(scope("192.0.2.1", *given)) == ""


class Traces:
    """Notes the headers that may name the parent of a trace."""

    def __init__(self) -> None:
        self.seen: list[Sequence[tuple[bytes, bytes]]] = []

    def begin(self, headers: Sequence[tuple[bytes, bytes]], route: str, received: float) -> RequestTrace:
        self.seen.append(headers)
        return None  # type: ignore[return-value]  # no request ends here


@pytest.mark.parametrize(
    ("trusted", "client", "taken"),
    [((), "192.0.2.1", True), (FROM_LOOPBACK, "127.0.0.1", True), (FROM_LOOPBACK, "192.0.2.1", False)],
)
def test_a_caller_names_the_parent_of_a_trace_unless_only_gateways_may(
    trusted: tuple[str, ...], client: str, taken: bool
) -> None:
    async def begin() -> list[Sequence[tuple[bytes, bytes]]]:
        traces = Traces()
        records = RequestRecords((), lambda *_: None, LogLimit(lambda: 0.0), traces, gateways(*trusted))
        records.begin({"method": "POST", "path": "/v1/completions"} | scope(client, ("traceparent", b"00-1")))
        return traces.seen

    assert asyncio.run(begin()) == [[(b"traceparent", b"00-1")] if taken else ()]


# Over a socket.


async def ask(served: Served, fairness_id: str = "", **more: Any) -> httpx.Response:
    headers = {FAIRNESS_HEADER: fairness_id} if fairness_id else {}
    return await served.client.post("/v1/completions", json=COMPLETION | more, headers=headers)


@pytest.mark.anyio
async def test_requests_of_two_fairness_ids_share_no_kv_and_are_two_clients() -> None:
    tenants: dict[str, set[str]] = {}
    async with serving(trusted_gateways=FROM_LOOPBACK) as served, anyio.create_task_group() as group:
        for number, fairness_id in enumerate(("a", "a", "b", "")):
            group.start_soon(ask, served, fairness_id)
            submit = (await served.worker.wait_submits(number + 1))[number]
            tenants.setdefault(fairness_id, set()).add(submit.tenant)
            served.worker.finish(submit.stream)
    assert [len(found) for found in tenants.values()] == [1, 1, 1]
    assert tenants["a"] != tenants["b"]
    assert tenants[""] == {""}
    owners = {tenant.partition(TENANT_SALT)[0] for found in tenants.values() for tenant in found}
    assert len(owners) == 3


@pytest.mark.anyio
async def test_an_untrusted_header_changes_nothing_whatever_it_has() -> None:
    async with serving(trusted_gateways=("10.0.0.0/8",)) as served, anyio.create_task_group() as group:
        group.start_soon(ask, served, "a b")
        (submit,) = await served.worker.wait_submits(1)
        assert submit.tenant == ""
        served.worker.finish(submit.stream)


@pytest.mark.anyio
async def test_a_gateway_reads_what_is_wrong_with_its_header() -> None:
    async with serving(trusted_gateways=FROM_LOOPBACK) as served:
        answer = await ask(served, "a b")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, FAIRNESS_HEADER)
        assert (await served.client.get("/health")).status_code == 200


@pytest.mark.anyio
async def test_fairness_ids_get_turns_in_equal_shares_with_the_class_of_their_key(tmp_path: Path) -> None:
    """One tenant sends three requests before another sends one, which comes second."""
    key = make_key()
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(make_record("all", key, KeyLimits()).line() + "\n")
    order: list[str] = []
    async with serving(slots=1, trusted_gateways=FROM_LOOPBACK, api_keys_file=str(file)) as served:
        served.client.headers["authorization"] = f"Bearer {key}"

        async def answer(fairness_id: str) -> None:
            assert (await ask(served, fairness_id)).status_code == 200
            order.append(fairness_id)

        async with anyio.create_task_group() as group:
            for count, fairness_id in enumerate("aaaab", 1):
                group.start_soon(answer, fairness_id)
                await served.until(lambda count=count: served.live + sum(served.router.waiting().values()) == count)  # type: ignore[misc]
            for number in range(5):
                submit = (await served.worker.wait_submits(number + 1))[number]
                served.worker.finish(submit.stream)
                await served.until(lambda number=number: len(order) == number + 1)  # type: ignore[misc]
        keys = await served.client.get("/metrics")
    assert "".join(order).index("b") < 4, order
    assert 'baton_key_requests_total{key="all"} 5.0' in keys.text


@pytest.mark.anyio
async def test_many_fairness_ids_add_no_series() -> None:
    async with serving(trusted_gateways=FROM_LOOPBACK, metrics_names="vllm") as served:

        async def names() -> set[str]:
            text = (await served.client.get("/metrics")).text
            return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(ask, served, f"tenant-{number}")
                submit = (await served.worker.wait_submits(number + 1))[number]
                served.worker.finish(submit.stream)
                if number == 0:
                    await served.until(lambda: not served.live)
                    await names()  # the series of this route itself
                    first = await names()
        assert await names() == first
        assert not any("tenant" in name for name in first)
