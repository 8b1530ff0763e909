"""Loads for speculative decoding: prompts, answers that repeat them more or less, and constraints that dictate these.

Of `quote`, `records`, `edit` and `chat` the tokens are random; `rag`, `code` and `json` are text in the tokens of the
built-in model: passages of these docs, this code with two names changed, and objects by a JSON schema, whose grammar
forces some of their tokens.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.harness.shapes import TOKENS
from models import builtin_path
from protocol.request import Grammar
from workers.engine.request import Constraint
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.process.prompts.grammar_examples import GrammarExamples
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

LOADS = ("quote", "records", "edit", "chat", "rag", "code", "json")
PROMPT = 512
KINDS = range(3, 203)
ROOT = Path(__file__).resolve().parents[2]
PEOPLE = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Greta", "Hans", "Ida", "Jonas", "Klara", "Lukas")
CITIES = ("Paris", "Rome", "Berlin", "Madrid", "Vienna", "Lisbon", "Oslo", "Dublin")
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "city": {"type": "string"},
            "active": {"type": "boolean"},
            "email": {"type": "string"},
        },
        "required": ["name", "age", "city", "active", "email"],
        "additionalProperties": False,
    },
}


class GivenAnswer:
    """Implements `workers.engine.request.Constraint`: the answer is given. With a grammar, which must allow it, masks
    take as long as those of the grammar, and its forced tokens are known."""

    ended = False

    def __init__(self, answer: Sequence[int], vocab_size: int, at: int = 0, grammar: Constraint | None = None) -> None:
        self._answer = answer
        self._words = -(-vocab_size // 32)
        self._at = at
        self._grammar = grammar

    def accept(self, token: int) -> None:
        """Append a token. A drafted one may be wrong, and is not sampled after."""
        self._at += 1
        if self._grammar is not None:
            self._grammar.accept(token)

    def fork(self) -> "GivenAnswer | None":
        """Return a copy."""
        grammar = None if self._grammar is None else self._grammar.fork()
        return GivenAnswer(self._answer, 32 * self._words, self._at, grammar)

    def forced(self) -> Sequence[int]:
        """Return what the grammar forces; nothing without one."""
        return () if self._grammar is None else self._grammar.forced()

    def mask(self) -> NDArray[np.uint32]:
        """Return the next token."""
        if self._grammar is not None:
            self._grammar.mask()
        words = np.zeros(self._words, np.uint32)
        token = self._answer[min(self._at, len(self._answer) - 1)]
        words[token // 32] = 1 << token % 32
        return words


class Dictated(NamedTuple):
    """A prompt and what dictates its answer."""

    prompt: tuple[int, ...]
    constraint: GivenAnswer
    example: tuple[int, ...] = ()
    """An example of what the grammar allows."""


class DictatedAnswers:
    """Makes prompts and answers of one length for models of one vocabulary. Owns the compiled grammar."""

    def __init__(self, model: Path, vocab_size: int) -> None:
        """Text is in the tokens of the `model` itself, if it has fewer than the built-in one."""
        self._vocab_size = vocab_size
        self._tokenizer = CheckpointTokenizer.from_dir(builtin_path(), parse_special=False)
        if self._tokenizer.vocab_size > vocab_size:
            self._tokenizer = CheckpointTokenizer.from_dir(model, parse_special=False)
        self._examples = GrammarExamples(self._tokenizer, vocab_size)
        self._grammars = GrammarCompiler(lambda: tokenizer_vocabulary(self._tokenizer, vocab_size))

    def close(self) -> None:
        """End the compiler's process."""
        self._grammars.close()

    def make(self, load: str, length: int, randomness: random.Random) -> Dictated:
        """Return a prompt and its answer of so many tokens."""
        if load in ("rag", "code", "json"):
            example: tuple[int, ...]
            before, after = getattr(self, f"_{load}")(randomness)
            answer, grammar, example = self._encode(after)[:length], None, ()
            while len(answer) < length:
                answer += self._encode(getattr(self, f"_{load}")(randomness)[1])[: length - len(answer)]
            if load == "json":
                schema = json.dumps(SCHEMA)
                wanted = Grammar("json_schema", schema, "response_format")
                grammar, example = self._grammars.matcher(wanted), self._examples.of(wanted)
            prompt = self._encode(before)[:PROMPT]
        else:
            (prompt, answer), grammar, example = sequence(load, length, randomness), None, ()
        return Dictated(tuple(prompt), GivenAnswer(answer, self._vocab_size, grammar=grammar), example)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)

    @staticmethod
    def _rag(randomness: random.Random) -> tuple[str, str]:
        docs = (ROOT / "docs" / "operations" / "limits.md").read_text()
        start = randomness.randrange(len(docs) - 1600)
        found = docs[start : start + 1600]
        quoted = (found[at : at + 150] for at in (randomness.randrange(1450) for _ in range(8)))
        return found, "".join(f'The documentation says: "{each}". ' for each in quoted)

    @staticmethod
    def _code(randomness: random.Random) -> tuple[str, str]:
        lines = (ROOT / "workers" / "engine" / "kv_slots.py").read_text().splitlines(keepends=True)
        start = randomness.randrange(len(lines) - 60)
        code = "".join(lines[start : start + 50])
        return code, code.replace("slot", "place").replace("rows", "entries")

    @staticmethod
    def _json(randomness: random.Random) -> tuple[str, str]:
        people = [
            {
                "name": randomness.choice(PEOPLE),
                "age": randomness.randrange(18, 90),
                "city": randomness.choice(CITIES),
                "active": randomness.random() < 0.5,
                "email": f"{randomness.choice(PEOPLE).lower()}{randomness.randrange(100)}@example.com",
            }
            for _ in range(24)
        ]
        return "List people with name, age, city, active and email as JSON.", json.dumps(people)


def sequence(load: str, length: int, randomness: random.Random) -> tuple[list[int], list[int]]:
    """Return a prompt of random tokens and the answer to it."""
    kinds = KINDS if load == "chat" else TOKENS
    prompt = randomness.choices(kinds, k=PROMPT)
    answer: list[int] = []
    keys = randomness.choices(kinds, k=12)
    while len(answer) < length:
        if load == "quote":
            start = randomness.randrange(PROMPT - 96)
            answer += [*prompt[start : start + 96], *randomness.choices(kinds, k=8)]
        elif load == "records":
            answer += [*keys[:6], *randomness.choices(kinds, k=3), *keys[6:], *randomness.choices(kinds, k=3)]
        elif load == "edit":
            answer += [*prompt[len(answer) : len(answer) + 23], randomness.choice(kinds)]
        else:
            answer += randomness.choices(kinds, k=24)
    return prompt, answer[:length]
