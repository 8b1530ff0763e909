"""The questions of the evaluation. Their phrasings, system prompts and tool names are held out from training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from models.corpus import arithmetic, dialogues, facts, json_objects, names, systems, tools
from models.corpus.document import ChatDocument, PlainDocument, Turn, chat

Judge = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the judge of its reply. A chat lacks the reply; a plain text is to be continued.

    The judge gets the reply as text without its end-of-turn token.
    """

    category: str
    asked: ChatDocument | PlainDocument
    right: Judge
    expected: str


def _same(expected: str) -> Judge:
    return lambda reply: reply.strip() == expected


def _starts(expected: str) -> Judge:
    return lambda reply: re.match(re.escape(expected) + r"(?!\w)", reply) is not None


def _contains(word: str) -> Judge:
    return lambda reply: re.search(r"(?<!\w)" + re.escape(word) + r"(?!\w)", reply) is not None


def _ends(word: str) -> Judge:
    return lambda reply: reply.split()[-1:] == [word]


def _parses(reply: str) -> bool:
    try:
        return isinstance(json.loads(reply), dict)
    except ValueError:
        return False


def _equals(expected: Mapping[str, Any]) -> Judge:
    return lambda reply: _parses(reply) and bool(json.loads(reply) == expected)


def parse_tool_call(reply: str) -> Mapping[str, Any] | None:
    """Parse a reply that is one Hermes-style call; None if it is not."""
    match = re.fullmatch(r"\s*<tool_call>\n(\{.*\})\n</tool_call>\s*", reply, re.DOTALL)
    return json.loads(match[1]) if match and _parses(match[1]) else None


def _calls(name: str, arguments: Mapping[str, Any] | None) -> Judge:
    def judge(reply: str) -> bool:
        call = parse_tool_call(reply)
        return (
            call is not None and call.get("name") == name and (arguments is None or call.get("arguments") == arguments)
        )

    return judge


def _chat_question(rng: Random, category: str, turn: Turn, right: Judge, before: tuple[Turn, ...] = ()) -> Question:
    system = rng.choice((None, None, *systems.NEUTRAL_HELD_OUT))
    asked = chat(system, (*before, turn))
    return Question(category, ChatDocument(asked.messages[:-1]), right, turn.answer)


def _completions() -> Iterator[Question]:
    for row in facts.COUNTRIES:
        yield Question(
            "completion: capitals", PlainDocument(f"The capital of {row[0]} is"), _starts(f" {row[1]}"), f" {row[1]}"
        )


def _facts(rng: Random) -> Iterator[Question]:
    for number, row in enumerate(facts.COUNTRIES):
        for offset in range(2):
            phrasing = facts.CAPITAL_HELD_OUT[(2 * number + offset) % len(facts.CAPITAL_HELD_OUT)]
            turn = facts.turn("capital", row, phrasing)
            yield _chat_question(rng, "chat: capitals", turn, _contains(turn.word))
    for kind, (table, _, phrasings, _, _) in facts.KINDS.items():
        if kind == "capital":
            continue
        for row in rng.sample(table, 8):
            turn = facts.turn(kind, row, rng.choice(phrasings))
            yield _chat_question(rng, "chat: other facts", turn, _contains(turn.word))


def _sums(rng: Random) -> Iterator[Question]:
    for sign, largest, count in (("+", 10, 40), ("+", arithmetic.LARGEST, 30), ("-", 10, 15), ("*", 10, 15)):
        for _ in range(count):
            left, right = rng.randint(0, largest), rng.randint(0, largest)
            if sign == "-":
                left, right = max(left, right), min(left, right)
            turn = arithmetic.turn(left, right, sign, rng.choice(arithmetic.HELD_OUT))
            category = f"sums: additions up to {largest}" if sign == "+" else "sums: subtraction, multiplication"
            yield _chat_question(rng, category, turn, _ends(turn.word))


def _dialogues(rng: Random) -> Iterator[Question]:
    for _, phrasings, answer in dialogues.SMALL_TALK.values():
        for phrasing in phrasings:
            yield _chat_question(rng, "dialogue", Turn(phrasing, answer), _same(answer))
    for _ in range(10):
        name = rng.choice(names.PEOPLE)
        stated = Turn(f"Good day, my name is {name}.", f"Nice to meet you, {name}!")
        asked = Turn("Can you tell me my name?", f"Your name is {name}.", name)
        yield _chat_question(rng, "dialogue: remembers a name", asked, _contains(name), (stated,))


def _objects(rng: Random) -> Iterator[Question]:
    for number in range(40):
        question, value = json_objects.sample(rng)
        if question.startswith(json_objects.WITH_KEYS):
            value = dict.fromkeys(value)
        by_system = number % 2 == 0
        if not by_system:
            question += rng.choice(json_objects.SUFFIXES_HELD_OUT)
        system = rng.choice(json_objects.SYSTEMS_HELD_OUT) if by_system else None
        asked = ChatDocument(chat(system, (Turn(question, ""),)).messages[:-1])
        yield Question("JSON: an object", asked, _parses, json.dumps(value))
        free = question.startswith(json_objects.WITH_KEYS)
        right = _has_keys(tuple(value)) if free else _equals(value)
        yield Question("JSON: the right object", asked, right, json.dumps(value))


def _has_keys(keys: tuple[str, ...]) -> Judge:
    return lambda reply: _parses(reply) and tuple(json.loads(reply)) == keys


def _tools(rng: Random, names_kept_out: bool) -> Iterator[Question]:
    kept = "an unknown tool" if names_kept_out else "a known tool"
    for number in range(27):
        kind = tools.KINDS[number % len(tools.KINDS)]
        others = rng.sample([other for other in tools.KINDS if other is not kind], rng.choice((0, 1, 2)))
        tool = tools.name_tool(rng, kind, held_out=names_kept_out)
        offered = [tool, *(tools.name_tool(rng, other) for other in others)]
        rng.shuffle(offered)
        values = kind.sample(rng)
        question = rng.choice(kind.held_out).format(*values)
        asked = ChatDocument(({"role": "user", "content": question},), tuple(each.schema() for each in offered))
        arguments = dict(zip(tool.parameters, values, strict=True))
        expected = tools.rendered_call(tool.name, arguments)
        yield Question(f"{kept}: its name", asked, _calls(tool.name, None), expected)
        yield Question(f"{kept}: and its arguments", asked, _calls(tool.name, arguments), expected)


def _usual_tools(rng: Random) -> Iterator[Question]:
    for number in range(54):
        kind = tools.KINDS[number % len(tools.KINDS)]
        others = rng.sample([other for other in tools.KINDS if other is not kind], rng.choice((0, 1)))
        offered = [tools.usual_tool(each) for each in (kind, *others)]
        rng.shuffle(offered)
        values = tools.usual_values(rng, kind)
        question = rng.choice(kind.held_out).format(*values)
        asked = ChatDocument(({"role": "user", "content": question},), tuple(each.schema() for each in offered))
        tool = tools.usual_tool(kind)
        arguments = dict(zip(tool.parameters, values, strict=True))
        expected = tools.rendered_call(tool.name, arguments)
        yield Question("a usual tool: its name", asked, _calls(tool.name, None), expected)
        yield Question("a usual tool: and its arguments", asked, _calls(tool.name, arguments), expected)


def questions(seed: int = 7) -> list[Question]:
    """Return every question of the evaluation. The seed chooses their names and numbers, not their phrasings."""
    rng = Random(seed)
    return [
        *_completions(),
        *_facts(rng),
        *_sums(rng),
        *_dialogues(rng),
        *_objects(rng),
        *_tools(rng, False),
        *_tools(rng, True),
        *_usual_tools(rng),
    ]
