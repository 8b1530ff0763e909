"""The command lines of the benchmarks: the page at the script's head, and each option with its unit and default."""

import argparse


class _Help(argparse.RawDescriptionHelpFormatter):
    """Leaves the page as it is, and names the defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if action.help is None or default in (None, False, "", argparse.SUPPRESS) or default == {}:
            return action.help
        shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
        return f"{action.help} (default: {shown})".replace("%", "%%")


def command_line(page: str | None) -> argparse.ArgumentParser:
    """A parser that shows `page`, a script's docstring."""
    return argparse.ArgumentParser(description=page, formatter_class=_Help)
