"""psutil, which tells what processes and CPUs have taken. A benchmark that cannot do without it says how to get it."""

try:
    import psutil
except ImportError:
    raise SystemExit("this benchmark needs psutil: pip install -e '.[bench]'") from None

__all__ = ["psutil"]
