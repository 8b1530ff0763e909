"""Decides which prompts are computed sparsely, and what of them is kept in any case."""

from collections.abc import Callable, Sequence

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, EmbeddedInput
from workers.engine.request import SPARSE, SPARSE_KEEP
from workers.engine.sparse.kept_rows import Ranges, ranges_of
from workers.engine.sparse.selection import forced_ranges
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.load_options import SparseSettings
from workers.process.prompts.refusal import PromptRefused, unsupported

Boundaries = Callable[[ChatInput, Sequence[int], Sequence[int]], list[int]]
"""Returns the tokens before each of some messages of a chat's prompt, of which the tokens are given; 0 if unknown."""


class SparsePrompts:
    """Knows the settings of a worker."""

    def __init__(self, settings: SparseSettings | None, boundaries: Boundaries) -> None:
        """Without `settings` no prompt is computed sparsely, unless an earlier worker has begun so."""
        self._settings = settings
        self._boundaries = boundaries

    def of(self, submit: Submit, tokens: Sequence[int]) -> SparsePrompt | None:
        """Return how much of a prompt is computed; None for all of it. Raises `PromptRefused` (UNSUPPORTED) for a
        request that asks for what is not possible."""
        if submit.kept is not None:
            return SparsePrompt(kept=_ranges(submit.kept)) if submit.kept else None
        wanted, settings = submit.limits.sparse_prefill, self._settings
        if wanted is None and submit.limits.sparse_keep is not None and not (settings and settings.tokens):
            text = "`sparse_prefill_keep` has no effect without `sparse_prefill`: send both, or neither"
            raise unsupported(text, SPARSE_KEEP)
        if wanted is False or (wanted is None and (settings is None or not self._is_long(settings, tokens))):
            return None
        reason = self._needs_all(submit)
        if settings is None:
            reason = "no prompt is scored here: start the server with --sparse-prefill, or leave it out"
        if settings is None or reason:
            if wanted is None:
                return None
            raise unsupported(f"`{SPARSE}`: {reason}", SPARSE)
        keep = settings.keep if submit.limits.sparse_keep is None else submit.limits.sparse_keep
        return SparsePrompt(keep, self._forced(submit, tokens))

    @staticmethod
    def _is_long(settings: SparseSettings, tokens: Sequence[int]) -> bool:
        return 0 < settings.tokens <= len(tokens)

    @staticmethod
    def _needs_all(submit: Submit) -> str:
        """Return why all of a prompt has to be computed; empty if nothing speaks against a part."""
        if submit.prompt_logprobs is not None:
            return "log-probabilities of the prompt need all of it: leave one of the two out"
        if isinstance(submit.input, EmbeddedInput):
            return "rows of embeddings cannot be scored: give tokens, or leave it out"
        if isinstance(submit.input, ChatInput) and submit.input.images:
            return "rows of images cannot be scored: leave the images out, or it"
        if submit.limits.max_tokens == 0:
            return "without an answer all of the prompt is computed: ask for a token at least, or leave it out"
        return ""

    def _forced(self, submit: Submit, tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return what is kept: of a chat all before the first message of the user, and the last one, as far as
        `forced_ranges` says."""
        source = submit.input
        if not isinstance(source, ChatInput):
            return forced_ranges(len(tokens))
        users = [index for index, message in enumerate(source.messages) if message.role == "user"]
        if not users:
            return forced_ranges(len(tokens))
        head, turn = self._boundaries(source, tokens, (users[0], users[-1]))
        if not head and (users[0] or source.tools_json):  # where that text ends is not known
            head = len(tokens)
        return forced_ranges(len(tokens), head, turn)


def _ranges(bounds: Sequence[int]) -> Ranges:
    try:
        return ranges_of(bounds)
    except ValueError as error:
        raise PromptRefused(ErrorCode.INVALID, "the kept ranges have a start without an end", SPARSE) from error
