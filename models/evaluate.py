"""Scores a checkpoint on held-out questions: `python -m models.evaluate [DIRECTORY]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from models import builtin_path
from models.corpus.document import ChatDocument
from models.corpus.held_out import Question, questions
from models.decoder import Decoder
from models.tokenizer import END_OF_TEXT, TURN_END, chat_template, render_chat, token_id

REPLY_LIMIT = 80
COMPLETION_LIMIT = 6
"""In tokens. A chat reply that does not end within the limit is wrong."""


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """A question, the tokens of its prompt and of the reply, and whether the reply is right."""

    question: Question
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    right: bool


def prompt_text(question: Question) -> str:
    """Return the text that the model continues, with special tokens."""
    if isinstance(question.asked, ChatDocument):
        return render_chat(chat_template(), question.asked.messages, question.asked.tools, add_generation_prompt=True)
    return question.asked.text


def answer(decoder: Decoder, tokenizer: Tokenizer, asked: Iterable[Question]) -> list[ScoredReply]:
    """Decode and judge the replies to the questions. Equal prompts are decoded once."""
    stops = (token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT))
    decoded: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    replies = []
    for question in asked:
        text, is_chat = prompt_text(question), isinstance(question.asked, ChatDocument)
        if text not in decoded:
            prompt = tokenizer.encode(text).ids
            limit = REPLY_LIMIT if is_chat else COMPLETION_LIMIT
            decoded[text] = (tuple(prompt), tuple(decoder.generate(prompt, limit, stops)))
        prompt_ids, tokens = decoded[text]
        said = tokenizer.decode(list(tokens))
        right = question.right(said) and (not is_chat or tokens[-1] == stops[0])
        replies.append(ScoredReply(question, prompt_ids, tokens, said, right))
    return replies


def score(replies: Iterable[ScoredReply]) -> dict[str, tuple[int, int]]:
    """Count right replies and questions for each category, in the order of the questions, and for `all`."""
    table: dict[str, tuple[int, int]] = {}
    total = (0, 0)
    for reply in replies:
        right, asked = table.get(reply.question.category, (0, 0))
        table[reply.question.category] = (right + reply.right, asked + 1)
        total = (total[0] + reply.right, total[1] + 1)
    return table | {"all": total}


def agreement(draft: Decoder, replies: Sequence[ScoredReply]) -> float:
    """Return the share of reply tokens that are also the draft model's most likely ones, given the tokens before."""
    same = count = 0
    for reply in replies:
        predicted = draft.predictions((*reply.prompt, *reply.tokens))
        expected = reply.tokens
        places = range(len(reply.prompt) - 1, len(reply.prompt) - 1 + len(expected))
        same += sum(int(predicted[place]) == token for place, token in zip(places, expected, strict=True))
        count += len(expected)
    return same / count


def table_text(columns: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """Format the scores as a Markdown table with a row for each category and a column for each name."""
    head = "| questions | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns)
    categories = next(iter(columns.values()))
    rows = [
        f"| {category} | "
        + " | ".join(f"{column[category][0]} of {column[category][1]}" for column in columns.values())
        + " |"
        for category in categories
    ]
    return "\n".join((head, *rows))


def evaluate(directory: Path) -> tuple[dict[str, dict[str, tuple[int, int]]], list[ScoredReply]]:
    """Return the score with float32 and with bfloat16 activations, both with the shipped bfloat16 weights.

    Also returns the float32 replies.
    """
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    replies = answer(Decoder(directory), tokenizer, questions())
    rounded = answer(Decoder(directory, bfloat16=True), tokenizer, questions())
    return {"float32": score(replies), "bfloat16": score(rounded)}, replies


def main() -> None:
    """Print the wrong replies in float32, and the table."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else builtin_path()
    columns, replies = evaluate(directory)
    for reply in replies:
        if not reply.right:
            print(f"{reply.question.category}: wanted {reply.question.expected!r}, got {reply.text!r}")
    print(table_text(columns))


if __name__ == "__main__":
    main()
