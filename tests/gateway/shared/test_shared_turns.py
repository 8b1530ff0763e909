"""Fair shares of clients over two gateways, each with a worker of its own whose engine the test steps."""

import json
from collections import Counter

import anyio.lowlevel
import pytest

from gateway.openai.decoding import RequestDecoder
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.shared.shared_turns import SharedTurns
from tests.gateway.harness.engines import EngineWorker
from workers.scripted.runner import ScriptedRunner

pytestmark = pytest.mark.anyio
SLOTS = 2
TOKENS = 8
INTERVAL = 60
"""Steps between two exchanges."""


class Overloaded:
    """A gateway at which clients have more requests than slots at all times."""

    def __init__(self, *clients: str) -> None:
        settings = GatewaySettings()
        self.clients = clients
        self.router = Router(settings)
        self.decoder = RequestDecoder(settings)
        self.turns = SharedTurns(self.router.queue.take_served, self.router.queue.charge_elsewhere)
        self.worker = EngineWorker(slots=SLOTS, runner=lambda: ScriptedRunner(slots=SLOTS))
        self.worker.join(self.router)
        self.groups: list[tuple[str, RequestGroup]] = []
        self.served: Counter[str] = Counter()

    def step(self) -> None:
        for client in self.clients:
            for _ in range(6 - sum(client == each for each, _ in self.groups)):
                body = {"model": "tiny", "prompt": client, "stream": True, "max_tokens": TOKENS, "ignore_eos": True}
                request = self.decoder.completion(json.dumps(body).encode()).request
                self.groups.append(
                    (client, self.router.admission.open(request, "r", key=client.encode(), client=client))
                )
        self.worker.step()
        ended = [each for each in self.groups if each[1].ended]
        self.groups = [each for each in self.groups if not each[1].ended]
        for client, _ in ended:
            self.served[client] += TOKENS


async def serve(*gateways: Overloaded, shared: bool, intervals: int = 20) -> Counter[str]:
    """Serve, and return the tokens that each client got in the second half."""
    before: Counter[str] = Counter()
    for interval in range(intervals):
        for _ in range(INTERVAL):
            for gateway in gateways:
                gateway.step()
            await anyio.lowlevel.checkpoint()
        if shared:
            texts = {str(number): gateway.turns.publish() for number, gateway in enumerate(gateways)}
            for number, gateway in enumerate(gateways):
                gateway.turns.read({name: text for name, text in texts.items() if name != str(number)})
        if interval == intervals // 2 - 1:
            before = sum((gateway.served for gateway in gateways), Counter())
    return sum((gateway.served for gateway in gateways), Counter()) - before


@pytest.mark.parametrize(("shared", "ratio"), [(False, 3.0), (True, 1.0)])
async def test_a_client_at_two_gateways_gets_no_more_than_one_at_one(shared: bool, ratio: float) -> None:
    served = await serve(Overloaded("greedy"), Overloaded("greedy", "modest"), shared=shared)
    assert served["greedy"] / served["modest"] == pytest.approx(ratio, rel=0.1)


async def test_three_clients_of_two_gateways_get_a_third_each() -> None:
    served = await serve(Overloaded("one", "both"), Overloaded("both", "two"), shared=True)
    total = served.total()
    assert {client: tokens / total for client, tokens in served.items()} == pytest.approx(
        dict.fromkeys(("one", "both", "two"), 1 / 3), rel=0.1
    )


async def test_a_client_that_leaves_a_gateway_gets_its_share_at_the_other_soon() -> None:
    first, second = Overloaded("greedy"), Overloaded("greedy", "modest")
    await serve(first, second, shared=True)
    first.clients = ()
    served = await serve(first, second, shared=True)
    assert served["greedy"] / served["modest"] == pytest.approx(1.0, rel=0.1)
