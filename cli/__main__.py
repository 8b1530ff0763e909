"""The command `baton`. It loads for a while; until then Ctrl-C just ends it, without a traceback."""

import gc
import signal

IMPORTED = 500_000
"""Allocations before garbage is collected. What is imported stays; a sixth of its time went into looking at it."""


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(IMPORTED)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background of a shell
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cli.main import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
