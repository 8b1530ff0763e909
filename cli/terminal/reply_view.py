"""Shows an answer while it is generated: text, reasoning and tool calls."""

from rich.console import Console

from cli.client.model_client import Piece
from cli.config.generation_options import ReasoningMode
from gateway.generation.delta import ReasoningDelta, ToolCallDelta


class ReplyView:
    """Prints text on standard output. Reasoning and tool calls are printed dim, on `aside`."""

    def __init__(self, aside: Console, mode: ReasoningMode) -> None:
        self._aside = aside
        self._mode = mode
        self._thought = 0
        """Characters of reasoning since text or a call."""
        self._call: int | None = None
        """The call whose arguments are being printed."""
        self._line_open = False
        """Standard output does not end with a line break."""

    def show(self, piece: Piece) -> None:
        """Print one piece."""
        match piece:
            case ReasoningDelta(text=text):
                self._show_reasoning(text)
            case ToolCallDelta():
                self._show_call(piece)
            case str():
                self._close_parts()
                print(piece, end="", flush=True)
                self._line_open = not piece.endswith("\n") if piece else self._line_open

    def end(self) -> None:
        """Complete the line of what was printed last."""
        self._close_parts()

    def _show_reasoning(self, text: str) -> None:
        if self._mode == "hide" or not text:
            return
        if not self._thought:
            self._close_parts()
            self._print("[thinking " if self._mode == "fold" else "[thinking]\n")
        self._thought += len(text)
        if self._mode == "show":
            self._print(text)

    def _show_call(self, part: ToolCallDelta) -> None:
        if part.call != self._call:
            self._close_parts()
            if self._line_open:
                print(flush=True)
                self._line_open = False
            self._call = part.call
            self._print(f"{part.name}(")
        self._print(part.arguments)

    def _close_parts(self) -> None:
        """End the reasoning or the call that was printed so far."""
        if self._thought:
            self._print(f"{self._thought} characters]\n" if self._mode == "fold" else "\n[answer]\n")
        if self._call is not None:
            self._print(")\n")
        self._thought, self._call = 0, None

    def _print(self, text: str) -> None:
        self._aside.print(text, end="", markup=False, highlight=False, style="dim", soft_wrap=True)
