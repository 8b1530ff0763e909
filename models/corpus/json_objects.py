"""Requests for JSON and the objects that answer them, formatted by json.dumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from models.corpus import arithmetic, dialogues, facts, names
from models.corpus.document import ChatDocument, Turn, chat

SYSTEMS = (
    "Reply in JSON.",
    "Reply in JSON only.",
    "Always answer in JSON.",
    "You are a helpful assistant. Reply in JSON.",
    "You answer with a JSON object.",
    "Respond with JSON only.",
    "Answer in JSON format.",
)
SYSTEMS_HELD_OUT = ("Write every reply in JSON.", "You are Baton. Answer with JSON only.")
SUFFIXES = (
    " Reply in JSON.",
    " Answer in JSON.",
    " Answer with a JSON object.",
    " Respond in JSON.",
    " Give the answer as JSON.",
    " Reply with JSON only.",
    " Use JSON.",
)
BARE = ("Reply in JSON.", "Reply in JSON", "Answer in JSON.", "JSON please.", "Use JSON.")
PREFIXES = ("Reply in JSON: ", "Reply in JSON. ", "Answer in JSON: ", "In JSON, please: ", "As JSON: ")
SUFFIXES_HELD_OUT = (" Put the answer in JSON.", " Reply with a JSON object.")

Maker = Callable[[Random], tuple[str, dict[str, Any]]]


def _answer(rng: Random) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.3:
        turn = arithmetic.question(rng)
        return turn.user, {"answer": int(turn.word)}
    turn = facts.question(rng)
    return turn.user, {"answer": turn.word}


def _small_talk(rng: Random) -> tuple[str, dict[str, Any]]:
    turn = dialogues.small_talk(rng)
    return turn.user, {"answer": turn.answer}


def _country(rng: Random) -> tuple[str, dict[str, Any]]:
    row = rng.choice(facts.COUNTRIES)
    question = rng.choice(("Describe {0}.", "Describe the country {0}.", "Tell me about {0}.", "What is {0}?"))
    return question.format(row[0]), {"country": row[0], "capital": row[1], "language": row[2], "continent": row[3]}


def _person(rng: Random) -> tuple[str, dict[str, Any]]:
    name, age = names.person(rng), rng.randint(1, 99)
    city, job = names.place(rng), rng.choice(names.JOBS)
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"{name} is {age} years old.", {"name": name, "age": age}),
        (f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city}),
        (f"{name} lives in {city}.", {"name": name, "city": city}),
        (f"{name} is a {job} in {city}.", {"name": name, "job": job, "city": city}),
        (f"{name}, {age}, works as a {job}.", {"name": name, "age": age, "job": job}),
    )
    text, value = rng.choice(forms)
    return rng.choice(("", "Extract the data: ", "Describe this person: ")) + text, value


def _product(rng: Random) -> tuple[str, dict[str, Any]]:
    colour, thing, price = rng.choice(names.COLOURS), rng.choice(names.OBJECTS), rng.randint(1, 99)
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"A {colour} {thing} costs {price} dollars.", {"product": thing, "color": colour, "price": price}),
        (f"The {thing} costs {price} dollars.", {"product": thing, "price": price}),
        (f"The {thing} is {colour}.", {"product": thing, "color": colour}),
    )
    return rng.choice(forms)


def _listed(rng: Random) -> tuple[str, dict[str, Any]]:
    kind, items = rng.choice((("colors", names.COLOURS), ("fruits", names.FRUITS), ("animals", names.ANIMALS)))
    count = rng.randint(2, 4)
    word = {2: "two", 3: "three", 4: "four"}[count]
    return rng.choice(("Name {0} {1}.", "List {0} {1}.")).format(word, kind), {kind: list(items[:count])}


_VALUES: dict[str, tuple[str | int | bool, ...]] = {
    "name": names.PEOPLE,
    "city": names.CITIES,
    "color": names.COLOURS,
    "animal": names.ANIMALS,
    "age": tuple(range(1, 100)),
    "price": tuple(range(1, 100)),
    "fruit": names.FRUITS,
    "job": names.JOBS,
    "active": (True, False),
}


WITH_KEYS = ("Give me an object with", "Make an object with", "Use")
"""The beginnings of requests that name the keys and leave the values free."""


def _with_keys(rng: Random) -> tuple[str, dict[str, Any]]:
    keys = rng.sample(tuple(_VALUES), rng.randint(1, 4))
    listed = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
    noun = "key" if len(keys) == 1 else "keys"
    question = rng.choice(WITH_KEYS) + " the {0} {1}."
    return question.format(noun, listed), {key: rng.choice(_VALUES[key]) for key in keys}


_MAKERS: tuple[tuple[Maker, float], ...] = (
    (_answer, 4.0),
    (_small_talk, 0.7),
    (_country, 1.0),
    (_person, 3.0),
    (_product, 1.0),
    (_listed, 0.5),
    (_with_keys, 1.5),
)


def sample(rng: Random) -> tuple[str, dict[str, Any]]:
    """Return a question that does not mention JSON, and the object that answers it."""
    makers, shares = zip(*_MAKERS, strict=True)
    maker: Maker = rng.choices(makers, shares)[0]
    return maker(rng)


def document(rng: Random) -> ChatDocument:
    """Return a chat with one to three objects. The system prompt or each question asks for JSON."""
    if rng.random() < 0.04:
        return chat(None, [Turn(rng.choice(BARE), json.dumps({"answer": dialogues.SMALL_TALK["greeting"][2]}))])
    by_system = rng.random() < 0.5
    turns = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        question, value = sample(rng)
        if not by_system:
            question = rng.choice(PREFIXES) + question if rng.random() < 0.3 else question + rng.choice(SUFFIXES)
        turns.append(Turn(question, json.dumps(value)))
    system = rng.choice(SYSTEMS) if by_system else rng.choice((None, None, "You are a helpful assistant."))
    return chat(system, turns)


def plain(rng: Random) -> str:
    """Return an object without a question."""
    return json.dumps(sample(rng)[1])
