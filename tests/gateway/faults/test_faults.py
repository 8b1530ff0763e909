"""Whatever happens to a real worker is noticed, named, and healed by the next life or by a standby."""

import os
import re
import signal
import sys
from dataclasses import replace

import anyio
import pytest
import structlog

from actors.supervision.deadlines import Deadlines
from actors.supervision.worker import WorkerState
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.metrics.test_metrics import scrape
from tests.pids import pid_of
from workers.faults.plan import CallFault, Fault, LinkFault
from workers.process.engine_thread import MAX_FAILED_STEPS

pytestmark = pytest.mark.anyio

QUICK = Deadlines(stop=0.5, term=0.2)
IMPATIENT = replace(QUICK, hang=2.0)
FOREVER = COMPLETION | {"max_tokens": 4000, "ignore_eos": True, "stream": True}

FAULTS = {
    "kill": "was killed by SIGKILL",
    "abort": "was killed by SIGABRT",
    "hang": "no step finished with work in flight for 2 s",
    "stop": "it was suspended" if sys.platform == "linux" else "no step finished with work in flight for 2 s",
}


@pytest.mark.parametrize(("kind", "reason"), FAULTS.items(), ids=FAULTS)
async def test_a_fault_inside_a_step_is_noticed_and_named(kind: CallFault, reason: str) -> None:
    fault = Fault(kind, call=5, incarnation=1)
    deadlines = IMPATIENT if "no step" in reason else QUICK
    with structlog.testing.capture_logs() as logs:
        async with real_gateway(launch("w0", rate=100, faults=(fault,)), deadlines=deadlines) as real:
            async with real.client.stream("POST", "/v1/completions", json=FOREVER):
                await real.until(lambda: real.status().incarnation == 2)
            await real.ready()
            assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200
    (restart,) = [line for line in logs if line["event"] == "worker_restarts"]
    assert reason in restart["reason"]


LINK = {
    "drop_message": "its link was lost",
    "garble_message": "it broke the protocol",
    "oversize_message": "its link was lost|its process exited with status 6",  # a worker leaves without a gateway
}


@pytest.mark.parametrize(("kind", "reason"), LINK.items(), ids=LINK)
async def test_a_lost_or_invalid_message_costs_the_worker_and_no_token(kind: LinkFault, reason: str) -> None:
    fault = Fault(kind, call=12, incarnation=1)
    body = COMPLETION | {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with structlog.testing.capture_logs() as logs:
        async with real_gateway(launch("w0", rate=200, faults=(fault,))) as real:
            disturbed = (await real.client.post("/v1/completions", json=body)).json()["choices"]
            assert real.status().incarnation == 2
            assert (await real.client.post("/v1/completions", json=body)).json()["choices"] == disturbed
    (restart,) = [line for line in logs if line["event"] == "worker_restarts"]
    assert re.match(reason, restart["reason"])


async def test_a_slow_link_costs_time_alone() -> None:
    fault = Fault("slow_link", call=8, calls=10, seconds=0.05)
    body = COMPLETION | {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with real_gateway(launch("w0", faults=(fault,))) as real:
        first = (await real.client.post("/v1/completions", json=body)).json()["choices"]
        assert (await real.client.post("/v1/completions", json=body)).json()["choices"] == first
        assert real.status().incarnation == 1


@pytest.mark.parametrize("kind", ["raise", "nan"])
async def test_a_worker_whose_every_step_fails_is_replaced(kind: CallFault) -> None:
    fault = Fault(kind, calls=0, incarnation=1)
    with structlog.testing.capture_logs() as logs:
        async with real_gateway(launch("w0", slots=1, faults=(fault,))) as real:
            # Each is tried twice, and a worker gets no more while its circuit is open.
            with anyio.fail_after(60):
                while real.status().incarnation == 1:
                    await real.client.post("/v1/completions", json=COMPLETION | {"n": MAX_FAILED_STEPS})
            await real.ready()
    (restart,) = [line for line in logs if line["event"] == "worker_restarts"]
    assert "steps in a row failed" in restart["reason"]


async def test_a_model_whose_worker_can_never_load_is_refused_while_others_serve() -> None:
    broken = launch("b", model="broken", faults=(Fault("refuse_load"),))
    with structlog.testing.capture_logs() as logs:
        async with real_gateway(launch("a"), broken, ready=("a",)) as real:
            await real.until(lambda: real.status(1).state is WorkerState.GIVEN_UP)
            assert real.status(1).incarnation == 1, "another start would end just so"
            refused = await real.client.post("/v1/completions", json=COMPLETION | {"model": "broken"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert "out of service" in refused.json()["error"]["message"]
            ready = await real.client.get("/health/ready")
            assert (ready.status_code, ready.json()["given_up"]) == (200, ["b"])
            assert ready.json()["models"] == {"tiny": True, "broken": False}
            assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200
    (said,) = [line for line in logs if line["log_level"] == "error"]
    assert (said["event"], said["worker"], said["left"]) == ("worker_is_out", "b", 1)


async def roles(real: Real) -> dict[str, str]:
    return {each["name"]: each["role"] for each in (await real.client.get("/admin/workers")).json()["workers"]}


async def test_a_standby_takes_the_place_of_a_killed_worker_which_then_stands_by() -> None:
    workers = launch("w0", load_seconds=1.0), launch("w1", standby=True, load_seconds=1.0)
    async with real_gateway(*workers) as real:
        before = await roles(real)  # the first ready one is active
        (active,) = (name for name, role in before.items() if role == "active")
        (standby,) = before.keys() - {active}
        killed = real.fleet.members[active].worker
        promotions = (await scrape(real, standby))["baton_worker_promotions_total"]
        os.kill(pid_of(killed.status), signal.SIGKILL)
        await real.until(lambda: killed.status.state is not WorkerState.READY)
        assert (await real.client.get("/health/ready")).status_code == 200
        answer = await real.client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 200
        assert killed.status.state is not WorkerState.READY, "nobody waited for the restart"
        await real.ready()
        assert await roles(real) == {active: "standby", standby: "active"}
        seen = {name: await scrape(real, name) for name in before}
        assert seen[standby]["baton_worker_promotions_total"] == promotions + 1
        assert (seen[standby]["baton_worker_standby"], seen[active]["baton_worker_standby"]) == (0, 1)
        assert (seen[standby]["baton_slots_available"], seen[active]["baton_slots_available"]) == (4, 0)
