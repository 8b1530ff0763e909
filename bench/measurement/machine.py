"""The CPU that figures were measured on."""

import platform
import re
from pathlib import Path

NOTED = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
"""Instructions that engines for language models differ by, as Linux calls them."""


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's name, its family and model, which tell virtual CPUs of one name apart, and its vector instructions.

    Where there is no /proc/cpuinfo, the name that Python knows.
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        return platform.processor() or platform.machine()

    def value(name: str) -> str:
        found = re.search(rf"^{name}\s*: *(.*)$", text, re.MULTILINE)
        return found[1].strip() if found else ""

    name = value("model name") or platform.machine()
    family = f", family {value('cpu family')} model {value('model')}" if value("cpu family") else ""
    flags = value("flags").split()
    noted = [flag for flag in NOTED if flag in flags]
    return f"{name}{family}" + (f" ({', '.join(noted)})" if noted else "")
