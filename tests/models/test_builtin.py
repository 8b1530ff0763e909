"""The shipped checkpoints load, score what their cards claim, and have cards generated from the score."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from models import builtin_path, draft_path
from models.card import card
from models.corpus.document import ChatDocument, PlainDocument
from models.corpus.held_out import Question, questions
from models.decoder import Decoder, KVCache
from models.evaluate import ScoredReply, agreement, answer, table_text
from models.training import Shape, tensor_shapes

SHIPPED = {"builtin": builtin_path(), "builtin_draft": draft_path()}
PER_CATEGORY = 3


def made(directory: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((directory / "score.json").read_text())
    return record


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def builtin() -> Decoder:
    return Decoder(builtin_path())


@pytest.fixture(scope="module")
def replies(builtin: Decoder, tokenizer: Tokenizer) -> list[ScoredReply]:
    """Return replies to the first few questions of every category."""
    chosen: list[Question] = []
    for question in questions():
        if sum(each.category == question.category for each in chosen) < PER_CATEGORY:
            chosen.append(question)
    return answer(builtin, tokenizer, chosen)


@pytest.mark.parametrize("directory", SHIPPED.values(), ids=SHIPPED)
def test_the_files_are_a_checkpoint_of_the_stated_shape(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    shape = Shape(**made(directory)["shape"])
    with safe_open(directory / "model.safetensors", framework="numpy") as checkpoint:
        found = {name: tuple(checkpoint.get_slice(name).get_shape()) for name in checkpoint.keys()}  # noqa: SIM118
        assert {checkpoint.get_slice(name).get_dtype() for name in found} == {"BF16"}
    assert found == tensor_shapes(shape)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"]
    for size in (shape.hidden, shape.head_dim, shape.ffn, shape.vocabulary):
        assert size % 16 == 0
    assert (directory / "model.safetensors").stat().st_size < 10_000_000


@pytest.mark.parametrize("directory", SHIPPED.values(), ids=SHIPPED)
def test_the_card_is_written_from_the_score(directory: Path) -> None:
    record = made(directory)
    assert (directory / "README.md").read_text() == card(record)
    assert table_text(record["score"]) in (directory / "README.md").read_text()


def test_the_builtin_model_has_the_stated_size() -> None:
    assert 2_000_000 <= made(builtin_path())["parameters"] <= 5_000_000
    assert made(draft_path())["parameters"] < made(builtin_path())["parameters"] / 3


def test_the_capital_of_france_is_paris(builtin: Decoder, tokenizer: Tokenizer) -> None:
    reply = builtin.generate(tokenizer.encode("The capital of France is").ids, 2, ())
    assert tokenizer.decode(reply).startswith(" Paris")


def test_replies_are_as_good_as_the_card_claims(replies: list[ScoredReply]) -> None:
    """One more reply may be wrong than the card counts, since floating-point sums differ between machines."""
    claimed = made(builtin_path())["score"]["float32"]
    wrong = Counter(reply.question.category for reply in replies if not reply.right)
    assert all(wrong[category] <= claimed[category][1] - claimed[category][0] + 1 for category in wrong)
    assert sum(reply.right for reply in replies) >= PER_CATEGORY * len(claimed) // 2


@pytest.mark.parametrize(
    ("category", "share"),
    [
        ("completion: capitals", 0.95),
        ("chat: capitals", 0.98),
        ("JSON: an object", 0.95),
        ("a usual tool: its name", 0.85),
        ("a usual tool: and its arguments", 0.85),
    ],
)
def test_the_card_claims_what_the_model_is_for(category: str, share: float) -> None:
    right, asked = made(builtin_path())["score"]["float32"][category]
    assert right >= share * asked


def test_the_card_counts_every_question() -> None:
    for directory in SHIPPED.values():
        for column in made(directory)["score"].values():
            assert column["all"][1] == len(questions())
            assert column["all"][0] == sum(right for name, (right, _) in column.items() if name != "all")


def test_the_draft_agrees_with_most_of_the_replies(replies: list[ScoredReply]) -> None:
    assert agreement(Decoder(draft_path()), replies) > made(draft_path())["agreement"] - 0.15


def test_a_reply_that_does_not_end_itself_is_wrong(builtin: Decoder, tokenizer: Tokenizer) -> None:
    endless = Question(
        "story", ChatDocument(({"role": "user", "content": "Count from 1 to 90."},)), lambda reply: True, ""
    )
    plain = Question("plain", PlainDocument("The capital of France is"), lambda reply: True, "")
    chat_reply, plain_reply = answer(builtin, tokenizer, [endless, plain])
    assert chat_reply.right == (chat_reply.tokens[-1] == tokenizer.token_to_id("<|im_end|>"))
    assert plain_reply.right


@pytest.mark.parametrize("name", SHIPPED)
def test_generation_ends_at_the_end_of_turn_and_of_text(name: str, tokenizer: Tokenizer) -> None:
    settings = json.loads((SHIPPED[name] / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]


@pytest.mark.reference
@pytest.mark.parametrize("directory", SHIPPED.values(), ids=SHIPPED)
def test_transformers_computes_the_same_logits(directory: Path, tokenizer: Tokenizer) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n").ids
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(Decoder(directory).logits(tokens, KVCache()) - expected).max() < 1e-3


def test_mlx_lm_loads_it() -> None:
    pytest.importorskip("mlx.core")
    mlx_lm = pytest.importorskip("mlx_lm")
    model, loaded = mlx_lm.load(str(builtin_path()))
    assert len(model.layers) == made(builtin_path())["shape"]["layers"]
    assert loaded.eos_token_ids == {1 + loaded.convert_tokens_to_ids("<|im_start|>"), 0}
