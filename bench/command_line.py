"""The command lines of the benchmarks: the page at the script's head, and each option with its unit and default."""

import argparse


class _Help(argparse.RawDescriptionHelpFormatter):
    """Leaves the page as it is, and names the defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help
        if text is None:
            return None
        if not (default is None or default is False or default in ("", argparse.SUPPRESS, {})):
            shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
            text = f"{text} (default: {shown})"
        return text.replace("%", "%%")


def command_line(page: str | None) -> argparse.ArgumentParser:
    """A parser that shows `page`, a script's docstring."""
    return argparse.ArgumentParser(description=page, formatter_class=_Help)
