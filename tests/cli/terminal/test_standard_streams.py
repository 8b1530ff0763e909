"""A program that is started with closed standard streams."""

import subprocess
import sys


def test_closed_standard_streams_are_opened_on_dev_null() -> None:
    check = (
        "import os, sys; from cli.terminal.standard_streams import open_standard_streams; open_standard_streams(); "
        "null = os.stat(os.devnull).st_rdev; "
        "print('x', flush=True); print('y', file=sys.stderr, flush=True); assert not sys.stdin.read(); "
        "sys.exit(any(os.fstat(number).st_rdev != null for number in range(3)))"
    )
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, check]
    assert subprocess.run(command, check=False).returncode == 0
