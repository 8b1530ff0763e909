"""The commands about models in the pages for people, each run as a process, with a hub on loopback."""

import shlex
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.cli.commands.models.commands import Commands
from tests.cli.commands.test_serve import SERVE, read_until, serving
from tests.docs.commands import OPERATIONS_PAGES, ROOT, console_lines
from tests.ports import port_for_later
from tests.workers.hub.hub_server import HubServer
from workers.hub.errors import HubCause

MODEL = "Qwen/Qwen3-0.6B"
COMMANDS = (["pull"], ["list"], ["inspect"], ["run"], ["ps"], ["rm"])
PAGES = [
    [line for page in pages for line in console_lines(page) if line.split()[1:2] in COMMANDS]
    for pages in ([ROOT / "README.md"], OPERATIONS_PAGES)
]


@pytest.mark.parametrize("lines", PAGES, ids=["README", "operations"])
def test_the_commands_of_a_page_one_after_the_other(lines: list[str], tmp_path: Path) -> None:
    """With the scripted backend, beside a server."""
    assert [line.split()[1] for line in lines][:2] in (["pull", "run"], ["pull", "list"])
    hub = HubServer()
    hub.add(MODEL, make_checkpoint(tmp_path / "published"))
    port = str(port_for_later())
    with hub.serve(), serving([*SERVE[:-2], "--port", port]) as server:
        read_until(server, "ready")
        baton = Commands(hub, tmp_path / "home")
        for line in lines:
            ended = baton.run(*shlex.split(line)[1:], given="/exit\n", BATON_BACKEND="scripted", BATON_PORT=port)
            assert (ended.returncode, "Error" in ended.stderr) == (0, False), (line, ended.stderr)
            assert ended.stdout, line


def test_every_cause_of_a_failed_download_is_listed() -> None:
    page = (ROOT / "docs" / "operations" / "models.md").read_text()
    section = page.partition("\n| Cause | Meaning | Next step |\n")[2].partition("\n\n")[0]
    assert [line.split("`")[1] for line in section.splitlines()[1:]] == [str(cause) for cause in HubCause]
