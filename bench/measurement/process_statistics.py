"""psutil, for the CPU time and memory of processes. Without it, benchmarks that need it end with a message."""

try:
    import psutil
except ImportError:
    raise SystemExit("this benchmark needs psutil: pip install -e '.[bench]'") from None

__all__ = ["psutil"]
