"""The training text depends only on the seed, and does not contain the questions of the evaluation."""

from __future__ import annotations

import json
import re
from random import Random

import pytest

from models.corpus import arithmetic, facts, held_out, json_objects, systems, tools
from models.corpus.document import ChatDocument, Document, PlainDocument
from models.corpus.mixture import take
from models.tokenizer import chat_template, render_document

COUNT = 6000


@pytest.fixture(scope="module")
def sample() -> list[Document]:
    return take(2, COUNT)


def spoken(text: str) -> str:
    """Return the words without case and punctuation, which could hide a repetition."""
    return " ".join(re.findall(r"\w+|[+*-]", text.lower()))


def questions_in(documents: list[Document]) -> set[str]:
    return {
        spoken(message["content"])
        for document in documents
        if isinstance(document, ChatDocument)
        for message in document.messages
        if message["role"] == "user"
    }


def test_the_same_seed_gives_the_same_documents(sample: list[Document]) -> None:
    assert take(2, 500) == sample[:500]


def test_another_seed_gives_other_documents(sample: list[Document]) -> None:
    assert take(3, 500) != sample[:500]


def test_the_documents_vary(sample: list[Document]) -> None:
    template = chat_template()
    texts = {render_document(template, document) for document in sample}
    assert len(texts) > 0.75 * COUNT


def test_held_out_questions_are_not_asked_in_training(sample: list[Document]) -> None:
    trained = questions_in(sample)
    for question in held_out.questions():
        # Questions about objects occur in training, too. There, the request for JSON is held out.
        if isinstance(question.asked, PlainDocument) or question.category.startswith("JSON"):
            continue
        assert spoken(question.asked.messages[-1]["content"]) not in trained


def test_every_held_out_phrasing_differs_from_every_training_phrasing() -> None:
    splits = [(questions, kept) for _, questions, kept, _, _ in facts.KINDS.values()]
    splits += [
        (arithmetic.QUESTIONS, arithmetic.HELD_OUT),
        (json_objects.SYSTEMS, json_objects.SYSTEMS_HELD_OUT),
        (json_objects.SUFFIXES, json_objects.SUFFIXES_HELD_OUT),
        (systems.NEUTRAL, systems.NEUTRAL_HELD_OUT),
    ]
    splits += [(kind.questions, kind.held_out) for kind in tools.KINDS]
    for questions, kept in splits:
        assert not {spoken(text) for text in questions} & {spoken(text) for text in kept}


def test_held_out_requests_for_json_and_tool_names_are_nowhere_in_training(sample: list[Document]) -> None:
    template = chat_template()
    text = spoken("\n".join(render_document(template, document) for document in sample))
    kept = [*json_objects.SYSTEMS_HELD_OUT, *json_objects.SUFFIXES_HELD_OUT]
    kept += [f"name {kind.held_out_name} description" for kind in tools.KINDS]
    assert [phrase for phrase in kept if spoken(phrase) in text] == []


def test_questions_have_an_answer_that_their_judge_accepts() -> None:
    for question in held_out.questions():
        if question.category != "JSON: the right object":
            assert question.right(question.expected), question.category
        assert not question.right("Blue."), question.category


def test_a_capital_is_judged_as_a_whole_word() -> None:
    paris = next(question for question in held_out.questions() if question.right("Paris."))
    assert paris.right(" Paris, and")
    assert not paris.right(" Parisian")


@pytest.mark.parametrize(
    "reply",
    [
        '{"name": "a", "arguments": {}}',
        '<tool_call>\n{"name": "a", "arguments": {}\n</tool_call>',
        '<tool_call>\n["a"]\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call> and more',
    ],
    ids=["no tags", "no JSON", "no object", "text after"],
)
def test_a_reply_that_is_not_a_tool_call_is_not_parsed(reply: str) -> None:
    assert held_out.parse_tool_call(reply) is None


def test_a_tool_document_calls_a_tool_that_it_offers(sample: list[Document]) -> None:
    calls = 0
    for document in sample:
        if not isinstance(document, ChatDocument):
            continue
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in document.tools}
        for message in document.messages:
            for call in message.get("tool_calls", ()):
                calls += 1
                parameters = offered[call["function"]["name"]]
                assert list(call["function"]["arguments"]) == parameters["required"]
    assert calls > 300


def test_every_json_answer_parses() -> None:
    rng = Random(5)
    for _ in range(300):
        for message in json_objects.document(rng).messages:
            if message["role"] == "assistant":
                assert isinstance(json.loads(message["content"]), dict)


def test_sums_are_correct_and_never_negative() -> None:
    rng = Random(4)
    for _ in range(500):
        left, right, sign = arithmetic.operands(rng)
        result = arithmetic.solve(left, right, sign)
        assert 0 <= left <= arithmetic.LARGEST
        assert result == {"+": left + right, "-": left - right, "*": left * right}[sign]
        assert result >= 0
