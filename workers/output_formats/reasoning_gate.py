"""Constraint over the reasoning of an answer: it bounds its length, and lets a grammar begin after it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.engine.request import Constraint, ConstraintFailed
from workers.output_formats.marker_pieces import MarkerPieces
from workers.output_formats.parse_plan import Action, Mode, ParsePlan
from workers.output_formats.parser import OutputParser
from workers.text.tokenizer import Tokenizer

NO_PIECES = MarkerPieces()


@dataclass(frozen=True, slots=True)
class ReasoningGate:
    """Makes the constraint of one request. It depends on the prompt and the tokens of the answer alone."""

    plan: ParsePlan
    tokenizer: Tokenizer
    prompt: Sequence[int]
    vocab_size: int
    end: tuple[int, ...]
    """Result of `reasoning_end`. Constraints are made while another thread uses the tokenizer."""
    limit: int | None = None
    """Maximum number of tokens of reasoning."""
    calls_plan: ParsePlan | None = None
    """Plan that parses calls as well, in an answer whose calls are parsed: a call may end the reasoning."""
    pieces: MarkerPieces = NO_PIECES
    """Markers that are ordinary text."""

    def constraint(self, inner: Constraint | None = None, *, with_reasoning: bool = False) -> "ReasoningConstraint":
        """Return a new constraint, of an answer without any token.

        `inner` begins after the reasoning. `with_reasoning`: it begins at once and has a rule of its own for it.
        """
        plan = self.plan if inner is not None or self.calls_plan is None else self.calls_plan
        parser = OutputParser(plan, self.tokenizer, self.prompt)
        end = self.end[:1] if with_reasoning else self.end
        free = None if inner is None else self._free()
        return ReasoningConstraint(
            parser,
            end,
            self._openings(),
            self.limit,
            inner,
            self.vocab_size,
            free,
            self.pieces,
            with_reasoning=with_reasoning,
        )

    def _free(self) -> NDArray[np.uint32]:
        """Return the tokens that are allowed before an inner constraint: all that neither end the answer nor begin a
        call, which it would have to allow."""
        bits = np.zeros(-(-self.vocab_size // 32) * 32, np.uint8)
        bits[: self.vocab_size] = 1
        calls = () if self.calls_plan is None else self.calls_plan.tokens(Mode.REASONING, Action.CALLS)
        bits[[token for token in (*self.tokenizer.eos_ids, *calls) if token < self.vocab_size]] = 0
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    def _openings(self) -> frozenset[int]:
        """Return the token that begins the reasoning, if it is one."""
        marker = self.plan.reasoning.open[:1] if self.plan.reasoning is not None else ""
        return frozenset(ident for ident, symbol in self.plan.symbols.items() if symbol == marker)


def reasoning_end(plan: ParsePlan, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that end the reasoning."""
    return tuple(tokenizer.encode(plan.reasoning_end, special=False))


class ReasoningConstraint:
    """Implements `Constraint`. Any text is allowed within the reasoning, until its end is forced."""

    def __init__(
        self,
        parser: OutputParser,
        end: Sequence[int],
        openings: frozenset[int],
        limit: int | None,
        inner: Constraint | None,
        vocab_size: int,
        free: NDArray[np.uint32] | None = None,
        pieces: MarkerPieces = NO_PIECES,
        *,
        with_reasoning: bool = False,
    ) -> None:
        """`end` are the tokens that end the reasoning, and `openings` those that begin it. `free` are allowed before
        `inner` begins; None allows all. An answer that could begin both with `inner` and with the text of a marker in
        `pieces` begins with `inner`. `with_reasoning` as in `ReasoningGate.constraint`."""
        self._parser = parser
        self._end = end
        self._openings = openings
        self._limit = limit
        self._inner = inner
        self._free = free
        self._pieces = pieces
        self._unwritten = b""
        """Rest of a marker that begins the reasoning, of which the model has written a part."""
        self._with_reasoning = with_reasoning
        self._words = -(-vocab_size // 32)
        self._count = 0
        """Tokens of reasoning so far."""
        self._forced: list[int] = []
        """Tokens that end the reasoning, the next one last."""
        self._first = True
        """No token was accepted."""
        self._in_answer = with_reasoning
        """The reasoning is over: the inner constraint decides."""
        self._check_limit()

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        if self._first:
            self._in_answer = self._in_answer or (self._parser.answering and not self._begins_marker(token))
        elif self._unwritten:
            self._continue_marker(token)
        self._first = False
        if self._in_answer and self._inner is not None:
            self._inner.accept(token)
        if self._in_answer and not self._with_reasoning and (self._inner is not None or self._limit is None):
            return
        inside = self._parser.reasoning
        self._parser.push(token)
        self._count += inside
        if self._forced:
            self._forced.pop()
        else:
            self._check_limit()
        self._in_answer = self._in_answer or (self._parser.answering and not self._unwritten)

    def fork(self) -> Constraint | None:
        """See `Constraint.fork`. None within a call, and where the inner constraint cannot be copied."""
        inner = None if self._inner is None else self._inner.fork()
        if self._is_inner_alone:
            return inner
        parser = self._parser.fork()
        if parser is None or (inner is None and self._inner is not None):
            return None
        fork = copy.copy(self)
        fork._parser, fork._inner, fork._forced = parser, inner, self._forced.copy()
        return fork

    def forced(self) -> Sequence[int]:
        """See `Constraint.forced`: the end of the reasoning, or what the inner constraint forces."""
        if self._forced:
            return tuple(reversed(self._forced))
        if self._inner is None or self._first or self._unwritten or not self._in_answer:
            return ()
        return self._inner.forced()

    @property
    def _is_inner_alone(self) -> bool:
        """Nothing but the inner constraint changes with the next token."""
        if self._inner is None or not self._in_answer:
            return False
        return not (self._first or self._unwritten or self._with_reasoning or self._forced)

    @property
    def ended(self) -> bool | None:
        """See `Constraint.ended`."""
        if self._forced or self._inner is None or not self._in_answer:
            return None  # these masks take no time
        return self._inner.ended

    def mask(self) -> NDArray[np.uint32] | None:
        """See `Constraint.mask`."""
        if self._forced:
            return self._allow(np.zeros(self._words, np.uint32), self._forced[-1:])
        if self._inner is None:
            return None
        if self._first and self._parser.answering:
            mask = self._inner.mask()
            return mask if mask is None else self._allow(mask.copy(), (*self._openings, *self._pieces.first))
        if self._unwritten:
            return self._allow(np.zeros(self._words, np.uint32), tuple(self._pieces.continuing(self._unwritten)))
        return self._inner.mask() if self._in_answer else self._free_mask()

    def _begins_marker(self, token: int) -> bool:
        """Note a first token that begins the marker of the reasoning and not the answer."""
        if self._inner is None:
            return token in self._openings
        if token in self._openings:
            self._unwritten = self._pieces.opening
            return True
        rest = self._pieces.rest(token, None)
        if rest is None:
            return False
        mask = self._inner.mask()
        if mask is None or mask[token // 32] >> np.uint32(token % 32) & 1:
            return False
        self._unwritten = rest
        return True

    def _continue_marker(self, token: int) -> None:
        rest = self._pieces.rest(token, self._unwritten)
        if rest is None:
            raise ConstraintFailed(f"token {token} does not continue the marker of the reasoning", "")
        self._unwritten = rest

    def _free_mask(self) -> NDArray[np.uint32] | None:
        """Return the tokens that are allowed in the reasoning: none with both the end of its marker and a part of the
        answer, which the inner constraint would not get."""
        written = self._parser.held.encode()
        if self._free is None or not written or not self._pieces.beyond:
            return self._free
        mask = self._free.copy()
        for token in self._pieces.ending_beyond(written):
            mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
        return mask

    def _check_limit(self) -> None:
        if self._limit is not None and self._parser.reasoning and self._count >= self._limit:
            self._forced = list(reversed(self._end))

    @staticmethod
    def _allow(mask: NDArray[np.uint32], tokens: Sequence[int]) -> NDArray[np.uint32]:
        for token in tokens:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask
