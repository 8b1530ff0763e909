"""An emulator that runs AArch64 programs on this machine: QEMU, the C libraries of Debian, and IREE's runtime.

    python -m tests.workers.iree.aarch64.emulator

sets it up in a folder of its own: `AARCH64_EMULATOR_DIR`, or `baton-emulator` in the user's cache directory. It takes a
Debian system, whose packages are downloaded and unpacked there. Nothing is installed, and root is not needed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

QEMU_PACKAGES = ("qemu-user-static", "qemu-user")
"""Packages that have QEMU as one static program, in Debian 12 and in later releases."""
LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6")
WHEEL_PLATFORM = "manylinux_2_28_aarch64"
RUNTIME = "iree-base-runtime"
TIMEOUT_S = 100
COMMAND = f"python -m {__spec__.name if __name__ == '__main__' else __name__}"


class EmulationError(Exception):
    """Raised when an emulated program fails; the text is what it printed."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """An emulator that was set up, and an emulated CPU."""

    qemu: str
    libraries: str
    """The folder that emulated programs take for the root."""
    program: str
    """The runtime's `iree-run-module`."""
    version: str
    """The version of the runtime."""
    cpu: str = "max"
    """QEMU's name of the CPU."""

    @classmethod
    def find(cls, cpu: str = "max", folder: Path | None = None) -> Self | None:
        """Return the emulator of the installed version of IREE, or None if it was not set up."""
        file = (folder or default_folder()) / "emulator.json"
        if not file.is_file():
            return None
        found = cls(**json.loads(file.read_text()) | {"cpu": cpu})
        return found if found.version == metadata.version(RUNTIME) else None

    def run(self, *arguments: str) -> None:
        """Run `iree-run-module`. Raises `EmulationError`."""
        command = [self.qemu, "-L", self.libraries, "-cpu", self.cpu, self.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise EmulationError(f"{self.cpu}: {done.returncode}: {done.stderr[-2000:]}")


def default_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("AARCH64_EMULATOR_DIR") or cache / "baton-emulator")


def set_up(folder: Path) -> Emulator:
    """Download and unpack everything. Raises `CalledProcessError` and `FileNotFoundError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _Apt(Path(name) / "arm64", "arm64").unpack(LIBRARIES, folder / "root")
        native = _Apt(Path(name) / "native", _run(["dpkg", "--print-architecture"]).strip())
        qemu = shutil.copy(_qemu(native, Path(name)), folder / "qemu-aarch64")
        wheel = ["--only-binary=:all:", "--no-deps", f"--platform={WHEEL_PLATFORM}"]
        version = metadata.version(RUNTIME)
        _run([sys.executable, "-m", "pip", "install", "-q", *wheel, "--upgrade", "--target", str(folder / "iree"),
              f"{RUNTIME}=={version}"])  # fmt: skip
    program = folder / "iree" / "iree" / "_runtime_libs" / "iree-run-module"
    program.chmod(0o755)
    emulator = Emulator(str(qemu), str(folder / "root"), str(program), version)
    emulator.run("--list_drivers")
    (folder / "emulator.json").write_text(json.dumps(asdict(emulator)))
    return emulator


def _qemu(apt: "_Apt", folder: Path) -> Path:
    """Return QEMU as one static program, unpacked below a folder."""
    for package in QEMU_PACKAGES:
        apt.unpack([package], folder / package)
        for name in ("qemu-aarch64-static", "qemu-aarch64"):
            if (program := folder / package / "usr" / "bin" / name).is_file():
                return program
    raise FileNotFoundError(f"no package of {' and '.join(QEMU_PACKAGES)} has qemu-aarch64")


class _Apt:
    """apt with lists of its own for one architecture, whatever the system's are for."""

    def __init__(self, folder: Path, architecture: str) -> None:
        for name in ("state/lists/partial", "cache/archives/partial", "packages"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        options = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Dir::State": str(folder / "state"),
            "Dir::State::status": str(folder / "status"),
            "Dir::Cache": str(folder / "cache"),
        }
        self._folder = folder / "packages"
        self._command = ["apt-get", "-qq", *(f"-o={name}={value}" for name, value in options.items())]
        _run([*self._command, "update"])

    def unpack(self, packages: Sequence[str], target: Path) -> None:
        """Unpack the files of packages, without what they depend on."""
        target.mkdir(exist_ok=True)
        _run([*self._command, "download", *packages], self._folder)
        for file in self._folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(file), str(target)])
            file.unlink()


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    print(f"set up in {default_folder()}: {set_up(default_folder()).qemu}")
