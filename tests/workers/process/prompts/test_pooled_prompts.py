"""Texts that are pooled, truncated by a tokenizer whose normalizer removes characters."""

import pytest

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import Input, Limits, PairInput, Pooled, Sampling, TextInput
from tests.workers.text.test_pairs import wordpiece
from workers.pooling.served_pooling import ServedPooling
from workers.process.prompts.pooled_prompts import PooledPrompts
from workers.process.prompts.prompt_encoder import PromptEncoder
from workers.process.prompts.refusal import PromptRefused
from workers.scripted.pooling import ScriptedClassifier
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

CONTEXT = 12
SPACES = " " * 4000
"""More than all tokens of a context have characters, and no token."""
UNKNOWN = "x" * 4000
"""One unknown token."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> PooledPrompts:
    path = tmp_path_factory.mktemp("wordpiece")
    wordpiece(path)
    encoder = PromptEncoder(CheckpointTokenizer.from_dir(path), CONTEXT)
    return PooledPrompts(encoder, CONTEXT, ServedPooling(4, classifier=ScriptedClassifier(), labels=1, pairs=True))


def tokens(prompts: PooledPrompts, source: Input, truncate: int | None) -> tuple[int, ...]:
    pooled = Pooled("scores" if isinstance(source, PairInput) else "vector", truncate=truncate)
    return prompts.build(Submit(1, "r", source, Sampling(), Limits(max_tokens=0), pooled=pooled), pooled)[0]


@pytest.mark.parametrize("truncate", [None, 0, 4], ids=["whole", "context", "four"])
def test_characters_without_a_token_take_no_room(prompts: PooledPrompts, truncate: int | None) -> None:
    assert tokens(prompts, TextInput(f"{SPACES}what{SPACES} is{SPACES}"), truncate) == (2, 4, 5, 3)
    assert tokens(prompts, TextInput(f"{UNKNOWN} is"), truncate) == (2, 1, 5, 3)
    if truncate != 4:
        assert tokens(prompts, PairInput(f"{SPACES}what", f"{SPACES}is"), truncate) == (2, 4, 3, 5, 3)


def test_the_end_of_a_divided_text_changes_no_token(prompts: PooledPrompts) -> None:
    """Every length leaves the first tokens of the whole text, wherever its characters are divided."""
    text = "embedding " * 40
    for most in range(3, CONTEXT + 1):
        assert tokens(prompts, TextInput(text), most) == (*(2, *((6, 7, 8) * 4))[: most - 1], 3)


def test_a_text_with_too_many_tokens_is_refused(prompts: PooledPrompts) -> None:
    for text in ("is " * 11, "is " * 4000, f"{SPACES}{'is ' * 4000}"):
        with pytest.raises(PromptRefused, match="the model takes 12 tokens") as refused:
            tokens(prompts, TextInput(text), None)
        assert (refused.value.code, refused.value.field) == (ErrorCode.CONTEXT, "prompt")


@pytest.mark.parametrize(
    ("source", "advice"),
    [(TextInput("what"), "send token ids, to an endpoint"), (PairInput("what", "is"), ": serve the model with its")],
    ids=["text", "pair"],
)
def test_texts_for_a_model_without_a_tokenizer_are_refused_with_advice_that_can_be_followed(
    source: Input, advice: str
) -> None:
    pooling = ServedPooling(4, classifier=ScriptedClassifier(), labels=1, pairs=True)
    with pytest.raises(PromptRefused, match=f"the model has no tokenizer.*{advice}") as refused:
        tokens(PooledPrompts(PromptEncoder(None, CONTEXT), CONTEXT, pooling), source, None)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "prompt")
