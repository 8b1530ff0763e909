"""A hub with the built-in model and others that Baton cannot serve."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from models import builtin_path
from tests.checkpoints import make_checkpoint
from tests.cli.commands.models.commands import Commands
from tests.workers.hub.hub_server import HubServer


@pytest.fixture
def baton(tmp_path: Path) -> Iterator[Commands]:
    hub = HubServer()
    hub.add("org/tiny", builtin_path())
    hub.add("org/random", make_checkpoint(tmp_path / "published"))
    hub.repos["org/bert"] = hub.repos["org/random"] | {"config.json": b'{"architectures": ["BertModel"]}'}
    with hub.serve():
        yield Commands(hub, tmp_path / "home")
