"""A worker of another machine, for the tests: `baton worker` with a script.

Run as `python FILE SPEC KEY ADDRESS SERVER ...`: the spec in JSON, the file of the worker's own key, and for each
gateway its address and its public key.
"""

import json
import sys
from pathlib import Path

import anyio
import msgspec

from actors.join.join_keys import JoinKeys
from actors.process.logs import configure_logging
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from actors.transport.keys import read_key, to_z85
from actors.transport.link import CurveKeys
from cli.config.launch import worker_command
from workers.process.gateways.address import GatewayAddress
from workers.process.remote_agent import RemoteAgent, run_agent
from workers.process.spec import WorkerSpec

text, file, *places = sys.argv[1:]
spec = msgspec.convert(json.loads(text), WorkerSpec)
own = read_key(Path(file))
configure_logging("worker-host", "warning")


async def main() -> None:
    agent = RemoteAgent(
        spec.name,
        worker_command(spec),
        [
            GatewayAddress(address, JoinKeys(CurveKeys(own.public, own.secret, server=to_z85(server))))
            for address, server in zip(places[::2], places[1::2], strict=True)
        ],
        policy=RestartPolicy(first_delay_s=0.01),
        deadlines=Deadlines(hang=2.5),
    )
    await run_agent(agent)


anyio.run(main)
