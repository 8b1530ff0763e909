"""No module in the current folder, on PYTHONPATH or in site-packages takes the place of ours or of Python's."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from baton_serve import __version__
from tests.baton_serve.installation import DEADLINE_S, PACKAGES, Installation, make_broken, run
from tests.checkpoints import make_checkpoint

COPY = """
import sys
from workers.iree.build.compile_client import Builder, build_all
from workers.iree.build.recipe import Recipe
from workers.iree.device.gpu import COMMON_FLAGS

flags = (*COMMON_FLAGS, "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
recipe = Recipe(sys.argv[1], "float32", False, 2, 32, flags, "", sys.argv[2])
print(*(built.group[0] for built in build_all(Builder(recipe), [("copy",)], 1)))
"""
"""Compiles the smallest graph in a compile process."""

LOADED_TWICE = """
import collections, sys
import cli.main, cli.commands.serve, workers.__main__, workers.process.loading
from baton_serve.start import ROOT

files = collections.Counter(getattr(module, "__file__", None) or "" for module in sys.modules.values())
print([file for file, count in files.items() if file.startswith(ROOT) and count > 1])
"""

REPLACEMENT = """
import sys, types

def main():
    print("the replacement")

start = types.ModuleType("baton_serve.start")
start.main = main
sys.modules["baton_serve.start"] = start
"""
"""A module `baton_serve` with another entry point."""


@dataclass(frozen=True)
class Surroundings:
    """An installation, and modules around it that fail when they are imported."""

    installed: Installation
    here: Path
    """The current folder."""
    environment: dict[str, str]

    def run(self, *argv: str) -> str:
        return run(*argv, cwd=self.here, environment=self.environment)


@pytest.fixture(params=["from_wheel", pytest.param("editable", marks=pytest.mark.exhaustive)])
def surroundings(request: pytest.FixtureRequest, tmp_path: Path) -> Surroundings:
    installed: Installation = request.getfixturevalue(request.param)
    # What Python and pip's script import comes before Baton's first line.
    program = "import re, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    early = set(run(str(installed.python), "-c", program).split())
    library = {name for name in sys.stdlib_module_names if find_spec(name)}  # without those of other systems
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, names in ((here, library), (elsewhere, library - early)):
        folder.mkdir()
        make_broken(folder, {*PACKAGES, *names})
    (elsewhere / "compiles.py").write_text(COPY)
    (elsewhere / "twice.py").write_text(LOADED_TWICE)
    environment = {"PYTHONPATH": str(elsewhere), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return Surroundings(installed, here, environment)


def test_the_command(surroundings: Surroundings) -> None:
    assert surroundings.run(str(surroundings.installed.baton), "--version") == f"baton {__version__}\n"


def test_only_the_console_script_can_be_replaced(surroundings: Surroundings) -> None:
    """It imports `baton_serve` before Baton runs. The other processes are started by the path of `start.py`."""
    (surroundings.here.parent / "elsewhere" / "baton_serve.py").write_text(REPLACEMENT)
    assert surroundings.run(str(surroundings.installed.baton), "--version") == "the replacement\n"
    assert surroundings.run(*surroundings.installed.start("cli"), "--version") == f"baton {__version__}\n"


def test_a_module_is_loaded_once(surroundings: Surroundings) -> None:
    assert surroundings.run(*surroundings.installed.start("twice")).strip() == "[]"


def test_a_server_and_its_worker(surroundings: Surroundings) -> None:
    argv = [str(surroundings.installed.baton), "serve", "--backend", "scripted", "--name", "tiny", "--port", "0"]
    with subprocess.Popen(
        argv,
        cwd=surroundings.here,
        env=os.environ | surroundings.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            url = next((found[0] for line in server.stderr if (found := re.search(r"http://127[.\d:]+", line))), "")
            answer = httpx.post(
                f"{url}/v1/completions", json={"model": "tiny", "prompt": "Hello", "max_tokens": 8}, timeout=DEADLINE_S
            )
            page = httpx.get(f"{url}/", timeout=DEADLINE_S)
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=DEADLINE_S)
        finally:
            server.kill()
    assert server.returncode == 0, errors
    assert len(answer.json()["choices"][0]["text"]) == 8
    assert "<html" in page.text


def test_the_probes_of_the_doctor(surroundings: Surroundings) -> None:
    pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
    report = surroundings.run(str(surroundings.installed.baton), "doctor")
    assert "local-task" in report
    assert "Ready" in report


def test_the_compile_process(surroundings: Surroundings, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
    model = make_checkpoint(tmp_path / "model")
    compiles = surroundings.installed.start("compiles", str(model), str(tmp_path / "graphs"))
    assert surroundings.run(*compiles) == "copy\n"


def test_the_server_that_chaos_breaks(surroundings: Surroundings, tmp_path: Path) -> None:
    """Its process is started by multiprocessing, so before Baton's first line more of Python is imported."""
    here = tmp_path / "packages"
    here.mkdir()
    make_broken(here, PACKAGES)
    words = ("chaos", "--own", "--backend", "scripted", "--faults", "raise", "--seconds", "0.1")
    environment = surroundings.environment | {"PYTHONPATH": str(here)}
    report = run(str(surroundings.installed.baton), *words, cwd=surroundings.here, environment=environment)
    assert "Ended" in report
