"""Cost estimate of prompts. Building them is tested with the output processor."""

import pytest

from protocol.commands import Submit
from protocol.request import ChatInput, Message, TokensInput
from tests.workers.process.harness.gateway_peer import submit
from workers.process.prompt_builder import CHARACTERS_PER_MESSAGE, CHARACTERS_PER_TOKEN, tokenize_cost

CHAT = ChatInput((Message("system", "ab"), Message("user", "cde")), tools_json="[]")


@pytest.mark.parametrize(
    ("given", "characters"),
    [
        (submit(1, "hello"), 5),
        (submit(1, "hello", resume=(1, 2, 3)), 5 + 3 * CHARACTERS_PER_TOKEN),
        (submit(1, CHAT), 7 + 2 * CHARACTERS_PER_MESSAGE),
        (submit(1, TokensInput((1,) * 1000)), 0),
    ],
    ids=["text", "resumed", "chat", "tokens"],
)
def test_the_cost_of_a_prompt_is_counted_in_characters(given: Submit, characters: int) -> None:
    assert tokenize_cost(given) == characters
