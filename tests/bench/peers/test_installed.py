"""The peers that are installed on this machine, each with a tiny model."""

from pathlib import Path

import pytest

from bench.harness.folders import default_cache
from bench.harness.shapes import make_model
from bench.peers.catalogue import PEERS
from bench.peers.peer import MIN_STEPS, RivalModel
from workers.host.topology import usable_cores


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", PEERS)
def test_a_peer_decodes_and_prefills(key: str, tmp_path: Path) -> None:
    peer = PEERS[key]
    if reason := peer.refusal("int8", "host"):
        pytest.skip(reason)
    path = make_model(default_cache(), "tiny")
    model = RivalModel(path, "int8", "host", usable_cores(), slots=2, context=256, folder=default_cache())
    peer.prepare(model)
    session = peer.start(model, tmp_path)
    try:
        assert session.decode(2, 16, 2 * MIN_STEPS) > 0
        assert session.prefill(64) > 0
        assert session.generate([[5, 6, 7], [8, 9, 10]], 4) == 8
    finally:
        session.close()
