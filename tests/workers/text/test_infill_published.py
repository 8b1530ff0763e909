"""Fill-in-the-middle prompts of models as they are published: the tokens of the text that the model's makers write."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import tokenizers

from tests.workers.text.samples import byte_level, write
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

PREFIX, SUFFIX = "def add(a, b):\n    ", "\n    return c\n"


class Published(NamedTuple):
    """The prompt that fills a gap, with {P} and {S} for the texts around it."""

    prompt: str
    tokens: tuple[str, ...]
    """The control tokens of the vocabulary."""
    ends: tuple[str, ...]
    """Those that must end the answer."""
    begins: bool = False
    """The tokenizer begins every prompt with a token."""


QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
STARCODER = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<repo_name>", "<file_sep>")
PUBLISHED: Mapping[str, Published] = {
    "Qwen2.5-Coder": Published(
        "<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *QWEN),
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>"),
    ),
    "CodeGemma": Published(
        "<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"),
        ("<|file_separator|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        begins=True,
    ),
    "Granite 4": Published(
        "<|fim_prefix|>{P}<|fim_suffix|>{S}<|fim_middle|>",
        ("<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|filename|>"),
        ("<|end_of_text|>", "<|fim_pad|>", "<|filename|>"),
    ),
    "StarCoder2": Published(
        "<fim_prefix>{P}<fim_suffix>{S}<fim_middle>", ("<|endoftext|>", *STARCODER), ("<|endoftext|>", "<file_sep>")
    ),
    "Granite Code": Published(
        "<fim_prefix>{P}<fim_suffix>{S}<fim_middle>",
        ("<|endoftext|>", *STARCODER[:4], "<filename>", "<reponame>"),
        ("<|endoftext|>", "<fim_pad>", "<filename>", "<reponame>"),
    ),
    "Granite 3": Published(
        "<fim_prefix>{P}<fim_suffix>{S}<fim_middle>",
        ("<|end_of_text|>", *STARCODER[:4], "<filename>", "<reponame>", "<|start_of_role|>"),
        ("<|end_of_text|>", "<fim_pad>"),
    ),
    "DeepSeek-Coder": Published(
        "<｜fim▁begin｜>{P}<｜fim▁hole｜>{S}<｜fim▁end｜>",
        ("<｜end▁of▁sentence｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<|EOT|>"),
        ("<｜end▁of▁sentence｜>", "<|EOT|>"),
        begins=True,
    ),
    "Codestral": Published(
        "[SUFFIX]{S}[PREFIX]{P}", ("[INST]", "[/INST]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"), ("[MIDDLE]",), begins=True
    ),
}


def checkpoint(path: Path, published: Published) -> Path:
    """Write a tokenizer with the control tokens of a model, which are special as in most of them."""
    made = tokenizers.Tokenizer.from_str(byte_level())
    made.add_special_tokens(list(published.tokens))
    description = json.loads(made.to_str())
    if not published.begins:
        description["post_processor"] = None
    return write(path, json.dumps(description))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_prompt_has_the_tokens_of_the_published_text(tmp_path: Path, name: str) -> None:
    published = PUBLISHED[name]
    path = checkpoint(tmp_path, published)
    tokenizer = CheckpointTokenizer.from_dir(path)
    assert tokenizer.infill is not None
    written = published.prompt.format(P=PREFIX, S=SUFFIX)
    reference = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert tokenizer.infill.encode(PREFIX, SUFFIX) == reference.encode(written).ids
    assert tokenizer.infill.text(PREFIX, SUFFIX) == written
    for end in published.ends:
        assert tokenizer.added_tokens[end] in tokenizer.infill.ends | tokenizer.eos_ids
