"""Lists of CPUs as the kernel and taskset write them: `0-3,8`."""

from collections.abc import Iterable

MAX_CPU = 1 << 16
"""More than Linux has numbers for."""


def cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list in rising order; of an empty text none. Raises `ValueError`."""
    numbers: set[int] = set()
    for part in text.split(",") if text else []:
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"{part.strip()!r} is not a CPU or a range of CPUs")
        low, high = int(first), int(last or first)
        if not low <= high <= MAX_CPU:
            raise ValueError(f"{part.strip()!r} is not a range of CPUs")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def cpu_text(numbers: Iterable[int]) -> str:
    """Return the list of these numbers, with ranges."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    for low, high in zip(starts, ends, strict=True):
        parts.append(str(low) if low == high else f"{low}-{high}")
    return ",".join(parts)
