"""Copies of the constraint over the reasoning, to which drafted tokens are appended."""

import functools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from protocol.request import Limits
from tests.workers.output_formats.marked_tokenizer import MarkedTokenizer
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import Constraint, ConstraintFailed
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.choice import choose_formats
from workers.output_formats.parsing import OutputParsing
from workers.output_formats.reasoning_gate import ReasoningConstraint
from workers.text.byte_tokenizer import ByteTokenizer

VOCAB = 400
THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
KINDS = {
    "tokens": (MarkedTokenizer(THINK), choose_formats("think", "hermes"), ""),
    "begun": (MarkedTokenizer(THINK), choose_formats("think", "hermes"), "<think>"),
    "text": (ByteTokenizer(), choose_formats("think", "hermes"), ""),
    "harmony": (MarkedTokenizer(HARMONY), choose_formats("harmony", "harmony"), "<|start|>assistant"),
}
PIECES = (
    *THINK,
    "<|channel|>analysis<|message|>why<|end|>",
    "<|start|>assistant<|channel|>final<|message|>",
    '{"name": "f", "arguments": {}}',
    "\u00e9",
    " \n",
    "a<",
    "12",
)


class Counted(AllowedTokens):
    """Allows digits, and keeps what it accepts."""

    def __init__(self, accepted: Sequence[int] = ()) -> None:
        super().__init__([*b"0123456789"], VOCAB)
        self.accepted = list(accepted)

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def fork(self) -> "Counted":
        return Counted(self.accepted)


@functools.cache
def parsing_of(kind: str) -> OutputParsing:
    return OutputParsing(*KINDS[kind][:2], VOCAB)


def made(kind: str, *, limit: int | None, grammar: bool, calls: bool, inside: bool) -> ReasoningConstraint:
    tokenizer, _, prompt = KINDS[kind]
    gate = parsing_of(kind).gate(tokenizer.encode(prompt, special=False), limit, parses_tools=calls)
    assert gate is not None
    return gate.constraint(Counted() if grammar else None, with_reasoning=grammar and inside)


def state(constraint: Constraint) -> tuple[object, ...]:
    """Return what the next token may be."""
    mask = constraint.mask()
    shown = None if mask is None else np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return shown, tuple(constraint.forced()), constraint.ended


def accepts(constraint: Constraint, token: int) -> bool:
    try:
        constraint.accept(token)
    except ConstraintFailed:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_like_the_constraint_itself_and_changes_nothing_of_it(kind: str) -> None:
    tokenizer, forks, randomness = KINDS[kind][0], 0, random.Random(kind)
    for _ in range(60):
        make = functools.partial(
            made,
            kind,
            limit=randomness.choice((None, 0, 3, 8)),
            grammar=randomness.random() < 0.6,
            calls=randomness.random() < 0.5,
            inside=randomness.random() < 0.3,
        )
        text = "".join(randomness.choice(PIECES) for _ in range(4))
        tokens = tokenizer.encode(text, special=False)
        mine, fresh, places = make(), make(), randomness.choices(range(len(tokens)), k=2)
        for at, token in enumerate(tokens):
            if at in places and (fork := mine.fork()) is not None:
                forks += 1
                other = make()
                for before in tokens[:at]:
                    other.accept(before)
                for drafted in tokens[at : at + 8]:
                    taken = randomness.choice(tokens) if randomness.random() < 0.1 else drafted
                    went_on = accepts(fork, taken)
                    assert went_on == accepts(other, taken)
                    if not went_on:
                        break
                    assert state(fork) == state(other)
                assert state(mine) == state(fresh)
            if not accepts(mine, token):
                break
            assert accepts(fresh, token)
    assert forks > 50


def test_there_is_no_copy_within_a_call() -> None:
    constraint = made("begun", limit=9, grammar=False, calls=True, inside=False)
    tokens = KINDS["begun"][0].encode('a</think><tool_call>{"name"', special=False)
    copied = []
    for token in tokens:
        copied.append(constraint.fork() is not None)
        constraint.accept(token)
    assert copied == [True, True, True, *[False] * (len(tokens) - 3)]


def test_the_end_of_the_reasoning_is_known_where_it_is_forced() -> None:
    constraint = made("text", limit=2, grammar=True, calls=False, inside=False)
    for token in b"<think>ab":
        constraint.accept(token)
    assert bytes(constraint.forced()) == b"</think>"
    for token in b"</th":
        constraint.accept(token)
    assert bytes(constraint.forced()) == b"ink>"


def test_tokens_of_the_reasoning_are_counted_one_by_one() -> None:
    tokenizer, formats, _ = KINDS["tokens"]
    parser = OutputParsing(tokenizer, formats, VOCAB).parser(
        (), Limits(), ToolSchemas(), parses_reasoning=True, parses_tools=False, parallel=True
    )
    assert parser is not None
    counts = []
    for token in tokenizer.encode("<think>ab</think>cd", special=False):
        parser.push(token)
        counts.append(parser.reasoning_tokens)
    assert counts == [1, 2, 3, 3, 3, 3]
