"""Small real tokenizers of the two kinds that the served families use, built in memory."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = (
    "The capital of France is Paris. A worker owns one model; the gateway routes each request. "
    "Grüße aus Köln, 東京は日本の首都です。 Emoji: 😀👩‍👩‍👧 ok? 1 + 1 = 2, and 12 * 12 = 144. "
)
BOS, EOS, TOOL = "<s>", "</s>", "<tool_call>"


@cache
def byte_level() -> str:
    """Byte-level BPE, as in Llama 3 and Qwen: every byte has a token; BOS is added by the post-processor."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken(TOOL, special=False), AddedToken("two words", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return str(tokenizer.to_str())


@cache
def sentencepiece(metaspace: bool = False) -> str:
    """SentencePiece with byte fallback, as in Llama 2 and Mistral: normalizer and decoder parts, or Metaspace ones."""
    pieces = [*"▁abcdefghijklmnopqrstuvwxyzTFP.,?", "▁t", "▁th", "▁the", "▁The", "▁c", "▁ca", "al", "▁is", "▁▁", "é"]
    vocabulary = {"<unk>": 0, BOS: 1, EOS: 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for piece in pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "c"), ("▁c", "a"), ("a", "l"), ("▁", "▁")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return str(tokenizer.to_str())


KINDS: Mapping[str, Any] = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": lambda: sentencepiece(metaspace=True),
}


def write(directory: Path, description: str, **files: Any) -> Path:
    """Write tokenizer.json and more JSON files (`generation_config={...}` becomes generation_config.json)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(description, encoding="utf-8")
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return directory
