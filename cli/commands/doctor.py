"""`baton doctor`: reports which backends and devices work on this machine, and what the others need."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from baton_serve import __version__
from baton_serve.start import module_command
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from models import builtin_path
from workers.errors import LoadRefused
from workers.host.cpu_plan import CpuPlan
from workers.host.huge_pages import HugePages
from workers.host.memory import free_bytes
from workers.host.probe import Probe, short
from workers.host.topology import Topology
from workers.iree.device.cpu import Cpu
from workers.plugins import registered_backends
from workers.process.backends import PACKAGES, cache_dir, missing_packages

PROBE_SECONDS = 120.0
CPU_FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bf16",
    "avxvnni",
    "avx512vnni",
    "amx-bf16",
    "amx-int8",
    "neon",
    "dotprod",
    "i8mm",
    "bf16",
    "sve",
)
"""Features that matter to the engines, by LLVM's names."""


def examine(settings: Settings, console: Console) -> bool:
    """Print the report. Returns whether at least one device of one backend works."""
    console.print(_machine(settings))
    probes = [line for backend in (*PACKAGES, *registered_backends()) for line in probe_backend(backend)]
    table = Table("backend", "device", "works", "details", title="Backends and devices", title_justify="left")
    for line in probes:
        mark = "[green]yes[/]" if line.works else "[yellow]no[/]"
        table.add_row(line.backend, line.device or "-", mark, escape(line.detail))
    console.print(table)
    for line in probes:
        if not line.works and line.advice:
            device = f"{line.backend} {line.device}".rstrip()
            console.print(f"  {device}: {escape(line.advice)}", highlight=False, soft_wrap=True)
    return _verdict(probes, console)


def probe_backend(backend: str, python: str = sys.executable) -> list[Probe]:
    """Probe one backend in a process of its own. Its failure becomes a line of the report."""
    try:
        missing = missing_packages(backend)
    except LoadRefused as error:  # of a plug-in
        return [Probe(backend, "", False, str(error))]
    if missing:
        advice = f"pip install 'baton-serve[{backend}]'" if backend in PACKAGES else "see its documentation"
        return [Probe(backend, "", False, f"not installed: {', '.join(missing)}", advice)]
    command = module_command("workers.process.probe_devices", backend, python=python)
    try:
        answer = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, check=True)
        return msgspec.json.decode(answer.stdout, type=list[Probe])
    except subprocess.TimeoutExpired:
        return [Probe(backend, "", False, f"no answer within {PROBE_SECONDS:g} s")]
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return [Probe(backend, "", False, f"the probe ended with status {error.returncode}: {last}")]
    except msgspec.DecodeError as error:
        return [Probe(backend, "", False, f"the probe's answer is not readable: {short(error)}")]


def _machine(settings: Settings) -> Table:
    table = Table(title="This machine", title_justify="left", show_header=False)
    table.add_row("baton", __version__)
    table.add_row("python", f"{platform.python_version()} ({platform.python_implementation()})")
    table.add_row("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    topology = Topology.of_host()
    table.add_row("cores", f"{topology} of {os.cpu_count()} CPUs")
    table.add_row("compute threads", _plan(CpuPlan.of(topology)))
    table.add_row("cpu features", " ".join(_cpu_features()) or "not known on this system")
    table.add_row("memory", _memory())
    table.add_row("huge pages", str(HugePages.of_host()))
    _add_cache(table, cache_dir(worker_spec(settings, ChosenModel("doctor", Path()))))
    # A long path is folded, not truncated, on a narrow terminal.
    builtin = Text(str(builtin_path()), overflow="fold")
    table.add_row("built-in model", builtin if builtin_path().is_dir() else "[red]missing[/]: reinstall baton-serve")
    return table


def _cpu_features() -> list[str]:
    present = Cpu.of_host().features
    return [name for name in CPU_FEATURES if name in present]


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = free_bytes()  # as a load computes it, limited by the process's cgroup
    return f"{total / 2**30:.1f} GiB" + ("" if free is None else f", {free / 2**30:.1f} GiB free")


def _plan(plan: CpuPlan) -> str:
    """Describe the CPUs of a server with one worker."""
    text = str(plan.workers[0])
    if plan.not_pinned:
        text += f", not pinned: {plan.not_pinned}"
    return f"{text}; {plan.advice}" if plan.advice else text


def _add_cache(table: Table, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        table.add_row("cache", f"[red]{folder} cannot be made: {error.strerror}[/]; set BATON_CACHE_DIR")
        return
    if not os.access(folder, os.W_OK):
        table.add_row("cache", f"[red]{folder} cannot be written[/]; set BATON_CACHE_DIR")
        return
    table.add_row("cache", f"{folder}: {shutil.disk_usage(folder).free / 2**30:.1f} GiB free on the disk")
    table.add_row("compiled graphs", _size(folder / "graphs"))
    table.add_row("packed weights", _size(folder / "weights"))


def _size(folder: Path) -> str:
    sizes = [size for file in folder.rglob("*") if file.is_file() and (size := file.stat().st_size)]
    return f"{len(sizes)} file{'' if len(sizes) == 1 else 's'}, {sum(sizes) / 2**20:.1f} MiB"


def _verdict(probes: list[Probe], console: Console) -> bool:
    working = sorted({line.backend for line in probes if line.works})
    if working:
        console.print(f"[green]Ready[/]: {' and '.join(working)} can serve. Try: baton serve")
    else:
        console.print("[red]Nothing here can serve a model yet[/]; see the advice above.")
    return bool(working)
