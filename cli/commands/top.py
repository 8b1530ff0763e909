"""`baton top`: a live view of a running server."""

import time
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli.client.administration import Administration
from cli.client.load_sample import LoadChange, take_sample
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.terminal.top_view import top_view
from cli.terminal.worker_table import WIDTH


def show_top(settings: Settings, given_url: str, interval_s: float, console: Console) -> None:
    """Draw the server every `interval_s` seconds until the user presses Ctrl-C, or once if this is no terminal.
    `given_url` is empty for the server of the settings. Raises `CommandFailed` if it does not answer at first."""
    with Administration.of(given_url, settings, reads=True) as client:
        _show(client, interval_s, console)


def _show(client: Administration, interval_s: float, console: Console) -> None:
    url = client.server
    before = take_sample(client)
    if not console.is_terminal:
        time.sleep(interval_s)
        Console(highlight=False, width=WIDTH).print(top_view(LoadChange(before, take_sample(client)), url))
        return
    shown = top_view(LoadChange(before, before), url)
    with Live(shown, console=console, screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            time.sleep(interval_s)
            try:
                now = take_sample(client)
            except CommandFailed as problem:  # it may be restarting
                live.update(Group(shown, Text(str(problem), style="bold red")), refresh=True)
                continue
            shown = top_view(LoadChange(before, now), url)
            live.update(shown, refresh=True)
            before = now
