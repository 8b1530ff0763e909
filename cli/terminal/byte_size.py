"""Formats numbers of bytes."""


def size(count: int) -> str:
    """Format bytes: 5.8 MB."""
    value, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
