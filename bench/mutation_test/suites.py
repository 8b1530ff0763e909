"""The modules of decision code, and the tests that should notice a change of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_STREAMS = ("tests/gateway/streaming", "tests/gateway/openai", "tests/gateway/dialects", "tests/gateway/admin")
_GATEWAY = ("tests/gateway/test_app.py", "tests/gateway/metrics/test_metrics.py", "tests/gateway/test_daemon.py")
_FLEET = tuple(
    f"tests/gateway/fleet/test_{name}.py"
    for name in (
        "fleet",
        "admission",
        "rolling_restart",
        "join_address",
        "remote_join",
        "failed_supervision",
        "hand_over",
    )
)
_SERVING = ("tests/gateway/http", "tests/gateway/faults", *_GATEWAY)


Stages: TypeAlias = tuple[tuple[str, ...], ...]
"""Test paths, the fastest first: each stage runs if none before it has noticed the mutant."""


@dataclass(frozen=True)
class Suite:
    """Modules with the same tests."""

    modules: tuple[str, ...]
    """Patterns of paths from the root."""
    stages: Stages


SUITES = (
    Suite(
        ("workers/engine/*.py",),
        (("tests/workers/engine",), ("tests/workers/scripted", "tests/workers/faults", "tests/workers/process")),
    ),
    Suite(
        ("gateway/routing/*.py", "gateway/routing/placement/*.py", "gateway/routing/admission/request_admission.py"),
        (("tests/gateway/routing",), _STREAMS, _SERVING),
    ),
    Suite(
        tuple(f"gateway/streaming/{name}.py" for name in ("resumable", "replay_buffer", "reply")),
        (("tests/gateway/streaming",), _STREAMS[1:], _SERVING),
    ),
    Suite(("gateway/fleet/*.py",), (_FLEET, ("tests/gateway/fleet",), ("tests/gateway/admin", *_SERVING))),
    Suite(
        tuple(f"actors/supervision/{name}.py" for name in ("life", "restart_policy", "deadlines", "protocol_state")),
        (
            (
                "tests/actors/supervision/life",
                *(f"tests/actors/supervision/test_{name}.py" for name in ("restart_policy", "protocol_state")),
            ),
            ("tests/actors/supervision",),
            ("tests/gateway/fleet", "tests/gateway/faults"),
        ),
    ),
    Suite(
        ("actors/mailbox.py",),
        (("tests/actors/test_mailbox.py", "tests/actors/test_actor.py"), ("tests/actors", "tests/gateway/fleet")),
    ),
)


def find_stages(root: Path, *, quick: bool = False) -> dict[str, Stages]:
    """Return the tests of each module of decision code. First are the test files that are named for the module.

    `quick` leaves out the last stage, which is the slowest.
    """
    found: dict[str, Stages] = {}
    for suite in SUITES:
        for module in sorted(path for pattern in suite.modules for path in root.glob(pattern)):
            own = _named_for(module.stem, [root / path for path in suite.stages[0]])
            named = tuple(path.relative_to(root).as_posix() for path in own)
            stages = suite.stages[:-1] if quick else suite.stages
            found[module.relative_to(root).as_posix()] = (named, *stages) if named else stages
    return found


def _named_for(module: str, paths: list[Path]) -> list[Path]:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return sorted(file for file in files if file.stem == f"test_{module}" or file.stem.startswith(f"test_{module}_"))
