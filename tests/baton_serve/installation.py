"""A virtual environment with Baton in it, built and installed without the network."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "actors", "gateway", "workers", "cli", "models")
DEADLINE_S = 100.0


def dependencies() -> str:
    """A .pth file with the dependencies of this environment. A line of it adds a folder, and not what the .pth files in
    that folder name: not an editable Baton."""
    return "\n".join(entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Installation:
    """A virtual environment that has the dependencies of this one."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Installation":
        """An environment without Baton."""
        venv.create(folder, symlinks=True)
        made = cls(folder)
        (made.site_packages / "dependencies.pth").write_text(dependencies())
        return made

    @classmethod
    def beside_others(cls, folder: Path, *what: str) -> "Installation":
        """An environment with Baton, installed as `install` does, beside modules under the names of its packages that
        fail when they are imported."""
        made = cls.make(folder)
        make_broken(made.site_packages, PACKAGES)
        made.install(*what)
        return made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def baton(self) -> Path:
        return self.folder / "bin" / "baton"

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *what: str) -> set[str]:
        """Install with pip, and return the names that are new in site-packages."""
        before = {file.name for file in self.site_packages.iterdir()}
        offline = ("--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet")
        run(sys.executable, "-m", "pip", "--python", str(self.python), "install", *offline, *what)
        return {file.name for file in self.site_packages.iterdir()} - before

    def start(self, module: str, *arguments: str) -> list[str]:
        """The argv that runs a module as Baton starts its processes."""
        file = "import baton_serve.start as start; print(start.__file__)"
        return [str(self.python), "-P", run(str(self.python), "-P", "-c", file).strip(), module, *arguments]


def run(
    *argv: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None, timeout_s: float = DEADLINE_S
) -> str:
    """The standard output of a command. Fails, with all that it printed, when the command does."""
    done = subprocess.run(
        argv, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def build(what: str, folder: Path, source: Path = ROOT) -> Path:
    """The `wheel` or `sdist` of a source tree."""
    run(sys.executable, "-m", "hatchling", "build", "-t", what, "-d", str(folder), cwd=source)
    (built,) = folder.iterdir()
    return built


def make_broken(folder: Path, names: Iterable[str]) -> None:
    """Modules that fail when they are imported, under these names."""
    for name in names:
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was imported from ' + __file__)\n")
