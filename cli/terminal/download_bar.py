"""The progress of a download: a bar on a terminal, and nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def download_bar(name: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr while the block runs. The function gets the bytes that have arrived, and the total."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done, _: progress.update(task, completed=done)
