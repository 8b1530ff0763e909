"""The modules of decision code, and the tests that should notice a change of them."""

from dataclasses import dataclass
from pathlib import Path

_STREAMS = ("tests/gateway/streaming", "tests/gateway/openai", "tests/gateway/dialects", "tests/gateway/admin")
_GATEWAY = ("tests/gateway/test_app.py", "tests/gateway/test_metrics.py", "tests/gateway/test_daemon.py")
_SERVING = ("tests/gateway/http", "tests/gateway/faults", *_GATEWAY)


@dataclass(frozen=True)
class Suite:
    """Modules with the same tests. `stages` are test paths, the fastest first: each stage runs if none before it has
    noticed the mutant."""

    modules: tuple[str, ...]
    """Patterns of paths from the root."""
    stages: tuple[tuple[str, ...], ...]


SUITES = (
    Suite(
        ("workers/engine/*.py",),
        (("tests/workers/engine",), ("tests/workers/scripted", "tests/workers/faults", "tests/workers/process")),
    ),
    Suite(("gateway/routing/*.py",), (("tests/gateway/routing",), _STREAMS, _SERVING)),
    Suite(
        tuple(f"gateway/streaming/{name}.py" for name in ("resumable", "replay_buffer", "reply")),
        (("tests/gateway/streaming",), _STREAMS[1:], _SERVING),
    ),
    Suite(
        ("gateway/fleet/*.py",), (("tests/gateway/fleet",), ("tests/gateway/admin", *_GATEWAY, "tests/gateway/faults"))
    ),
    Suite(
        tuple(f"actors/supervision/{name}.py" for name in ("life", "restart_policy", "deadlines", "protocol_state")),
        (
            tuple(f"tests/actors/supervision/test_{name}.py" for name in ("life", "restart_policy", "protocol_state")),
            ("tests/actors/supervision",),
            ("tests/gateway/fleet", "tests/gateway/faults"),
        ),
    ),
    Suite(
        ("actors/mailbox.py",),
        (("tests/actors/test_mailbox.py", "tests/actors/test_actor.py"), ("tests/actors", "tests/gateway/fleet")),
    ),
)


def modules(root: Path, suite: Suite) -> list[str]:
    """Return the paths of a suite's modules, sorted."""
    return sorted(path.relative_to(root).as_posix() for pattern in suite.modules for path in root.glob(pattern))
