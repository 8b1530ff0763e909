"""`baton rm` as a process: it asks, and keeps what a server serves."""

import signal
from pathlib import Path

from tests.cli.commands.models.commands import Commands
from tests.cli.commands.test_serve import read_until, serving
from tests.cli.pseudo_terminal import Terminal


def test_a_model_is_removed_after_a_confirmation(baton: Commands) -> None:
    baton.run("pull", "org/random")
    for answer, status, left in (("n", 1, 1), ("y", 0, 0)):
        with Terminal(("-m", "cli", "rm", "org/random"), baton.environment) as terminal:
            terminal.wait_for("Remove org/random (439.6 kB)?")
            terminal.type(f"{answer}\n")
            assert terminal.exit_status() == status
        assert len([*baton.snapshots()]) == left


def test_without_a_terminal_a_flag_is_needed(baton: Commands) -> None:
    baton.run("pull", "org/random")
    refused = baton.run("rm", "org/random")
    assert (refused.returncode, "only with --yes" in refused.stderr, len([*baton.snapshots()])) == (1, True, 1)
    part = baton.run("rm", "org/random:Q8_0", "--yes")
    assert (part.returncode, "are removed together: leave :Q8_0 out" in part.stderr) == (1, True)
    removed = baton.run("rm", "org/random", "--yes")
    assert (removed.returncode, [*baton.snapshots()]) == (0, [])
    assert removed.stdout.startswith("org/random was removed: 44")
    again = baton.run("rm", "org/random", "--yes")
    assert (again.returncode, "does not have org/random" in again.stderr) == (1, True)


def test_what_a_worker_serves_is_not_removed(baton: Commands) -> None:
    """Under whatever name. The backend is the scripted one, whose command line has the path, too."""
    baton.run("pull", "org/random")
    revision = f"org/random@{baton.hub.commit('org/random')}"
    serve = ("-m", "cli", "serve", "org/random", "--name", "other", "--backend", "scripted", "--port", "0")
    with serving(serve, baton.environment) as server:
        read_until(server, "ready")
        for named in ("org/random", revision):
            refused = baton.run("rm", named, "--yes")
            assert refused.returncode == 1
            assert f"serves {named}; stop its server first" in refused.stderr
            assert len([*baton.snapshots()]) == 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=100) == 0
    assert baton.run("rm", revision, "--yes").returncode == 0


def test_what_a_worker_serves_by_a_link_is_not_removed(baton: Commands, tmp_path: Path) -> None:
    baton.run("pull", "org/random")
    (snapshot,) = baton.snapshots()
    link = tmp_path / "current"
    link.symlink_to(snapshot)
    serve = ("-m", "cli", "serve", str(link), "--backend", "scripted", "--port", "0")
    with serving(serve, baton.environment) as server:
        read_until(server, "ready")
        refused = baton.run("rm", "org/random", "--yes")
        assert (refused.returncode, "stop its server first" in refused.stderr) == (1, True)
        assert snapshot.exists()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=100) == 0
