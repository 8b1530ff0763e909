"""Chats with tools: definitions, questions that need a tool, calls, and answers after the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models.corpus import dialogues, facts, names
from models.corpus.document import ChatDocument, Message, Turn

Values = Mapping[str, str | int]

MESSAGES = ("I am late", "Happy birthday", "See you soon", "Good luck", "Call me", "Dinner is ready")
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK")


@dataclass(frozen=True, slots=True)
class ToolKind:
    """A capability with several tool names, so that a model must read the name from the prompt."""

    tool_names: tuple[str, ...]
    held_out_name: str
    description: str
    parameters: tuple[tuple[str, str], ...]  # name and JSON type; `/` separates alternative names
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    sample: Callable[[Random], tuple[str | int, ...]]
    results: tuple[tuple[str, str], ...]  # what the tool returns, and the answer to it


def _place(rng: Random) -> tuple[str | int, ...]:
    return (names.place(rng),)


def _numbers(rng: Random) -> tuple[str | int, ...]:
    return (rng.randint(0, 999), rng.randint(0, 999))


def _minutes(rng: Random) -> tuple[str | int, ...]:
    return (rng.randint(1, 90),)


def _topic(rng: Random) -> tuple[str | int, ...]:
    topics = (*names.ANIMALS, *names.OBJECTS, *names.JOBS)
    return (names.odd_word(rng) if rng.random() < 0.3 else f"{rng.choice(names.ADJECTIVES)} {rng.choice(topics)}",)


def _person(rng: Random) -> tuple[str | int, ...]:
    return (names.person(rng),)


def _message(rng: Random) -> tuple[str | int, ...]:
    text = rng.choice(MESSAGES)
    return (names.person(rng), text)


def _translation(rng: Random) -> tuple[str | int, ...]:
    words = (*names.ANIMALS, *names.OBJECTS, *names.FRUITS)
    return (names.odd_word(rng) if rng.random() < 0.2 else rng.choice(words), rng.choice(names.LANGUAGES))


def _money(rng: Random) -> tuple[str | int, ...]:
    first, second = rng.sample(CURRENCIES, 2)
    return (rng.randint(1, 500), first, second)


KINDS: tuple[ToolKind, ...] = (
    ToolKind(
        ("get_weather", "weather", "get_current_weather", "check_weather"),
        "fetch_weather",
        "Get the weather in a city.",
        (("city/location/place", "string"),),
        (
            "What is the weather in {0}?",
            "How is the weather in {0}?",
            "What's the weather like in {0}?",
            "Is it raining in {0}?",
            "Tell me the weather in {0}.",
            "What is the weather like in {0} today?",
            "How warm is it in {0}?",
            "Weather in {0}?",
        ),
        ("How is the weather in {0} today?", "Please check the weather in {0}."),
        _place,
        (
            ('{{"temperature": {n}, "condition": "sunny"}}', "It is sunny and {n} degrees in {0}."),
            ('{{"temperature": {n}, "condition": "rainy"}}', "It is rainy and {n} degrees in {0}."),
            ('{{"temperature": {n}}}', "It is {n} degrees in {0}."),
        ),
    ),
    ToolKind(
        ("get_time", "current_time", "get_local_time"),
        "time_in_city",
        "Get the local time in a city.",
        (("city/location/place", "string"),),
        ("What time is it in {0}?", "Tell me the time in {0}.", "What is the local time in {0}?", "Time in {0}?"),
        ("What's the time in {0}?", "Which time is it in {0}?"),
        _place,
        (('{{"time": "{n}:00"}}', "It is {n}:00 in {0}."),),
    ),
    ToolKind(
        ("add", "add_numbers", "sum"),
        "addition",
        "Add two numbers.",
        (("a/x/first", "integer"), ("b/y/second", "integer")),
        ("Add {0} and {1}.", "What is {0} plus {1}?", "What is {0} + {1}?", "Compute {0} + {1}.", "Sum {0} and {1}."),
        ("Please add {0} and {1}.", "How much do {0} and {1} make?"),
        _numbers,
        (('{{"result": {n}}}', "The result is {n}."),),
    ),
    ToolKind(
        ("set_timer", "start_timer", "timer"),
        "create_timer",
        "Set a timer.",
        (("minutes/duration", "integer"),),
        ("Set a timer for {0} minutes.", "Start a {0} minute timer.", "Wake me in {0} minutes.", "Timer: {0} minutes."),
        ("Please set a timer for {0} minutes.", "Set a {0} minute timer."),
        _minutes,
        (('{{"ok": true}}', "The timer is set to {0} minutes."),),
    ),
    ToolKind(
        ("search", "web_search", "search_web", "find"),
        "lookup",
        "Search the web.",
        (("query/text/q", "string"),),
        ("Search for {0}.", "Find {0}.", "Look up {0}.", "Search the web for {0}.", "Google {0}."),
        ("Please search for {0}.", "Search {0} on the web."),
        _topic,
        (('{{"results": {n}}}', "I found {n} results for {0}."),),
    ),
    ToolKind(
        ("send_message", "send_email", "message"),
        "write_message",
        "Send a message to a person.",
        (("to/recipient", "string"), ("text/body/message", "string")),
        ('Send "{1}" to {0}.', 'Write "{1}" to {0}.', 'Tell {0} "{1}".', 'Send {0} the message "{1}".'),
        ('Please send "{1}" to {0}.', 'Send a message to {0}: "{1}".'),
        _message,
        (('{{"ok": true}}', "I sent the message to {0}."),),
    ),
    ToolKind(
        ("translate", "translate_word", "translate_text"),
        "translation",
        "Translate a word.",
        (("text/word", "string"), ("language/target", "string")),
        (
            "Translate {0} to {1}.",
            "Translate the word {0} into {1}.",
            "What is {0} in {1}?",
            "How do I say {0} in {1}?",
        ),
        ("Please translate {0} to {1}.", "How do you say {0} in {1}?"),
        _translation,
        (('{{"result": "{w}"}}', "It is {w} in {1}."),),
    ),
    ToolKind(
        ("convert", "convert_currency", "exchange"),
        "currency",
        "Convert money.",
        (("amount/value", "integer"), ("from/source", "string"), ("to/target", "string")),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "Change {0} {1} into {2}."),
        ("Please convert {0} {1} to {2}.", "What is {0} {1} in {2}?"),
        _money,
        (('{{"result": {n}}}', "{0} {1} are {n} {2}."),),
    ),
    ToolKind(
        ("get_contact", "find_contact", "get_phone"),
        "contact",
        "Get the phone number of a person.",
        (("name/person", "string"),),
        ("What is the phone number of {0}?", "Find the number of {0}.", "I want to call {0}.", "Phone number of {0}?"),
        ("What is {0}'s phone number?", "Give me the phone number of {0}."),
        _person,
        (('{{"number": {n}}}', "The number of {0} is {n}."),),
    ),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool kind with the names that it has in one chat."""

    kind: ToolKind
    name: str
    parameters: tuple[str, ...]
    described: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the definition for the OpenAI API. Parameters have descriptions if the tool is `described`."""
        properties: dict[str, dict[str, str]] = {}
        for name, (_, kind) in zip(self.parameters, self.kind.parameters, strict=True):
            properties[name] = {"type": kind} | ({"description": f"The {name}."} if self.described else {})
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.kind.description,
                "parameters": {"type": "object", "properties": properties, "required": list(self.parameters)},
            },
        }

    def call(self, values: tuple[str | int, ...]) -> Message:
        """Return the assistant's message that calls the tool."""
        arguments = dict(zip(self.parameters, values, strict=True))
        function = {"name": self.name, "arguments": arguments}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def name_tool(rng: Random, kind: ToolKind, *, held_out: bool = False) -> Tool:
    """Name a tool of this kind, sometimes with random letters added. Training never uses the held-out name."""
    name = kind.held_out_name if held_out else rng.choice(kind.tool_names)
    if not held_out and rng.random() < 0.2:
        name = f"{rng.choice(kind.tool_names)}_{names.odd_word(rng)}"
    parameters = tuple(rng.choice(alternatives.split("/")) for alternatives, _ in kind.parameters)
    return Tool(kind, name, parameters, rng.random() < 0.2)


def usual_tool(kind: ToolKind) -> Tool:
    """Return the tool with the first of its names, which a small model can memorize."""
    return Tool(kind, kind.tool_names[0], tuple(alternatives.split("/")[0] for alternatives, _ in kind.parameters))


def usual_values(rng: Random, kind: ToolKind) -> tuple[str | int, ...]:
    """Return values for a question about a usual tool: common words and small numbers."""
    small = tuple(range(1, 31))
    choices: dict[str, tuple[Sequence[str | int], ...]] = {
        "get_weather": (names.CITIES,),
        "get_time": (names.CITIES,),
        "add": (small, small),
        "set_timer": (small,),
        "search": ((*names.ANIMALS, *names.FRUITS),),
        "send_message": (names.PEOPLE, MESSAGES),
        "translate": ((*names.ANIMALS, *names.FRUITS), names.LANGUAGES),
        "convert": (small, CURRENCIES[:3], CURRENCIES[3:]),
        "get_contact": (names.PEOPLE,),
    }
    return tuple(rng.choice(words) for words in choices[kind.tool_names[0]])


def usual_document(rng: Random) -> ChatDocument:
    """Return a chat with one or two usual tools and one to three questions with their calls, without results."""
    kinds = rng.sample(KINDS, rng.choices((1, 2), (3, 2))[0])
    messages: list[Message] = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.1:
            turn = _no_tool(rng)
            answer: Message = {"role": "assistant", "content": turn.answer}
            messages += [{"role": "user", "content": turn.user}, answer]
            continue
        kind = rng.choice(kinds)
        values = usual_values(rng, kind)
        question = rng.choice(kind.questions).format(*values)
        messages += [{"role": "user", "content": question}, usual_tool(kind).call(values)]
    return ChatDocument(tuple(messages), tuple(usual_tool(kind).schema() for kind in kinds))


SYSTEMS = (None, None, "You are a helpful assistant.", "You are Baton.", "You can use tools.")


def document(rng: Random) -> ChatDocument:
    """Return a chat with one to three tools. Most questions need a call, and most calls have a result and an answer."""
    kinds = rng.sample(KINDS, rng.choices((1, 2, 3), (5, 3, 1))[0])
    tools = [name_tool(rng, kind) for kind in kinds]
    system = rng.choice(SYSTEMS)
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.2:
            turn = _no_tool(rng)
            messages += [
                {"role": "user", "content": turn.user},
                {"role": "assistant", "content": turn.answer},
            ]
            continue
        tool = rng.choice(tools)
        values = tool.kind.sample(rng)
        messages += [{"role": "user", "content": rng.choice(tool.kind.questions).format(*values)}, tool.call(values)]
        result, said = rng.choice(tool.kind.results)
        if rng.random() < 0.1:
            break
        number, word = rng.randint(1, 30), names.odd_word(rng)
        messages += [
            {"role": "tool", "content": result.format(*values, n=number, w=word)},
            {"role": "assistant", "content": said.format(*values, n=number, w=word)},
        ]
    return ChatDocument(tuple(messages), tuple(tool.schema() for tool in tools))


def _no_tool(rng: Random) -> Turn:
    return facts.question(rng) if rng.random() < 0.5 else dialogues.small_talk(rng)


def rendered_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Render the call as the template does: JSON between the tags, each on its own line."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
