"""Tokenizers of GGUF files, beside those that they were made from: byte-level BPE and SentencePiece's."""

import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.checkpoints import TRAINING_TEXT, make_checkpoint
from tests.workers.checkpoints.gguf.gguf_files import make_gguf, write_gguf
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.eos_ids import read_eos_ids
from workers.checkpoints.generation_config import read_sampling_defaults
from workers.checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

CORPUS = [
    *TRAINING_TEXT.splitlines(),
    "I'll say WE'VE been; they're DON'T, O'Neil'S  camelCaseWord XMLHttpRequest iPhone ÉCOLE ﬁnd",
    "tabs\tand   spaces \n\n  newlines \r\n\r\n trailing   ",
    "1 12 123 1234 12345.678 ½ ² Ⅻ ٣٤ 1st 2nd a1b2",
    "e\u0301 n\u0303 (decomposed) हिन्दी ไทย 한국어 العربية עברית 東京",
    "<tool_call> <|im_start|>user\n## heading // comment /* x */ !!! ... ?! {}[]()<>|&^%$#@~`",
    " ",
    "  leading",
    "",
]
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
DIGITS = {"smollm", "starcoder", "refact", "command-r"}
PIECES = {
    "deepseek-llm": "Hello|,| |你好| world| |1|2|3|4|5|!|\n|\n|foo|(|bar|)| ü|nd| don|'|t",
    "deepseek-v3": "Hello|,| |你好| world| |123|45|!\n\n|foo|(bar|)| ünd| don|'t",
}
"""A text in pieces, by several patterns one after the other, of pre-tokenizers that transformers does not have."""
GPT2 = {"gpt-2", "phi-2", "olmo"}


def reference_steps(name: str) -> Any:
    """The pre-tokenizer as transformers or the models' own tokenizer.json has it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in GPT2 | DIGITS)
    if name in GPT2:
        return byte_level
    if name in DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    pattern = _SEED if name == "seed-coder" else splits()[name]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


_SEED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern in Seed-Coder's tokenizer.json."""


def splits() -> Mapping[str, str]:
    module = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    found: Mapping[str, str] = module.GGUF_PRE_TOKENIZER_SPLITS
    return {**found, **dict.fromkeys(("chatglm-bpe", "glm4"), found["llama-bpe"])}  # as in llama.cpp


@cache
def trained() -> str:
    """Merges across all places at which one of the pre-tokenizers splits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|eot_id|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return str(tokenizer.to_str())


def original_tokenizer(name: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained())
    tokenizer.pre_tokenizer = reference_steps(name)
    tokenizer.model.ignore_merges = PRE_TOKENIZERS[name].whole_words
    if name in ("command-r", "qwen2", "qwen35"):
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def byte_level_keys(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    description = json.loads(tokenizer.to_str())
    count = tokenizer.get_vocab_size()
    types = [1] * count + [UNUSED] * 3
    for added in description["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokenizer.id_to_token(i) for i in range(count)] + [f"[PAD{i}]" for i in range(3)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in description["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id("<|im_start|>"),
    }


def write(folder: Path, keys: Mapping[str, Any], architecture: str = "llama") -> Path:
    """A file without a model that can be served, of which the tokenizer is read."""
    base: dict[str, Any] = {"embedding_length": 8, "block_count": 1, "attention.head_count": 1, "context_length": 64}
    base |= {"feed_forward_length": 8, "attention.layer_norm_rms_epsilon": 1e-5}
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": v for key, v in base.items()}, **keys}
    write_gguf(folder / "model.gguf", metadata, {"token_embd.weight": np.zeros((4, 8), np.float32)})
    return folder / "model.gguf"


@pytest.mark.reference
@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS.keys() - PIECES.keys()))
def test_text_is_split_as_by_the_original(tmp_path: Path, name: str) -> None:
    original = original_tokenizer(name)
    keys = byte_level_keys(original, name)
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, keys | {"tokenizer.ggml.add_bos_token": False}))
    for text in CORPUS:
        ids = original.encode(text).ids
        assert tokenizer.encode(text, special=True) == ids, text
        assert tokenizer.decode(ids) == original.decode(ids), text
    assert tokenizer.added_tokens.keys() == {"<|im_start|>", "<|eot_id|>", "<tool_call>"}
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert tokenizer.eos_ids == {original.token_to_id("<|eot_id|>")}


@pytest.mark.parametrize("name", PIECES)
def test_several_patterns_split_one_after_the_other(name: str) -> None:
    steps = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[name].steps()}
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(Tokenizer(models.BPE()).to_str()) | {"pre_tokenizer": steps}))
    pieces = PIECES[name].split("|")
    text, at, found = "".join(pieces), 0, []
    for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        found.append(text[at:end])
        at = end
    assert found == pieces


def test_the_tokens_around_a_prompt(tmp_path: Path) -> None:
    keys = byte_level_keys(Tokenizer.from_str(trained()), "llama-bpe")
    bos = keys["tokenizer.ggml.bos_token_id"]
    with_bos = CheckpointTokenizer.from_dir(write(tmp_path, keys))
    assert with_bos.encode("a", special=True)[0] == bos
    assert with_bos.encode("a", special=False)[0] != bos
    ends = {"tokenizer.ggml.eos_token_id": bos + 1, "tokenizer.ggml.add_eos_token": True}
    both = CheckpointTokenizer.from_dir(write(tmp_path, keys | ends))
    assert both.encode("a", special=True) == [bos, *both.encode("a", special=False), bos + 1]


def test_gemma_4_has_pieces_with_listed_merges(tmp_path: Path) -> None:
    original = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    original.normalizer = normalizers.Replace(" ", "▁")
    original.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    single = ["<unk>", "<bos>", "<turn|>", "<|tool_response>", *(f"<0x{byte:02X}>" for byte in range(256))]
    original.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=single))
    stored = json.loads(original.to_str())
    # Bytes are tokens that no text has, and others are found in it.
    stored["added_tokens"] = [token for token in stored["added_tokens"] if not token["content"].startswith("<0x")]
    original = Tokenizer.from_str(json.dumps(stored))
    tokens = sorted(vocabulary := original.get_vocab(), key=lambda token: vocabulary[token])
    types = {"<unk>": 3, "<bos>": 3, "<turn|>": 3, "<|tool_response>": USER_DEFINED}
    keys = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [types.get(token, 6 if token.startswith("<0x") else 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in stored["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, keys))
    for text in [*CORPUS, "😀 <turn|>"]:
        ids = original.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, special=True) == [1, *ids], text
        assert tokenizer.decode(ids) == original.decode(ids), text
    assert tokenizer.eos_ids == {2, 3}


def test_ids_that_no_token_has_leave_the_others_alone(tmp_path: Path) -> None:
    keys = byte_level_keys(Tokenizer.from_str(trained()), "gpt-2") | {"tokenizer.ggml.add_bos_token": False}
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    dense = CheckpointTokenizer.from_dir(write(tmp_path, keys))
    last = len(tokens)  # behind three that are unused
    tokens.append("<|last|>")
    types.append(USER_DEFINED)
    made = CheckpointTokenizer.from_dir(write(tmp_path, keys))
    assert made.vocab_size == last + 1
    assert made.encode("I <|last|>", special=True) == [*dense.encode("I ", special=True), last]
    assert made.encode("I <|im_start|>", special=True) == dense.encode("I <|im_start|>", special=True)
    assert made.decode(range(last - 3, last + 1)) == "<|last|>"
    marked, mark = made.mark_control_tokens("<|im_start|><|last|>")
    assert made.encode_marked(marked, mark)[-1] == last
    assert made.encode_marked(marked, mark)[0] != keys["tokenizer.ggml.bos_token_id"]


SENTENCEPIECE = {
    "llama": ("llama", True, []),
    "gemma": ("gemma2", False, ["▁▁", "▁▁▁", "▁▁▁▁", "\n\n"]),
}


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_sentencepiece_makes_the_same_tokens(tmp_path: Path, kind: str) -> None:
    library = pytest.importorskip("sentencepiece")
    architecture, prefix, defined = SENTENCEPIECE[kind]
    stream = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 2),
        model_writer=stream,
        model_type="bpe",
        vocab_size=640,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=defined,
        num_threads=1,
        minloglevel=2,
    )
    original = library.SentencePieceProcessor(model_proto=stream.getvalue())
    pieces = range(original.vocab_size())
    types = [
        2 if original.is_unknown(i) else CONTROL if original.is_control(i) else 6 if original.is_byte(i) else 1
        for i in pieces
    ]
    tokens = [original.id_to_piece(i) for i in pieces]
    for i, token in enumerate(tokens):
        if token in defined:
            types[i], tokens[i] = USER_DEFINED, token.replace("▁", " ")  # as the converter writes them
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [original.get_score(i) for i in pieces],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
        "tokenizer.ggml.unknown_token_id": original.unk_id(),
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = CheckpointTokenizer.from_dir(write(tmp_path, keys, architecture))
    for text in CORPUS:
        if text and "<" not in text:
            ids = original.encode(text)
            assert tokenizer.encode(text, special=False) == ids, text
            assert tokenizer.encode(text, special=True) == [original.bos_id(), *ids]
            assert tokenizer.decode(ids) == original.decode(ids), text
    assert tokenizer.eos_ids == {original.eos_id()}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("pre", "deepseek-coder", "'deepseek-coder' is not supported, only llama-bpe, llama3,"),
        ("pre", None, "None is not supported, only"),
        ("model", "t5", "'t5' is not supported, only 'gpt2', 'llama' and 'gemma4'"),
        ("merges", ["a"], "merge 0 is not of two tokens to a third: 'a'"),
        ("merges", None, "is not a list of strings"),
        ("token_type", [1], "is not a list of the types of"),
        ("bos_token_id", 1 << 20, "1048576 is not the id of one of"),
    ],
    ids=str,
)
def test_a_tokenizer_that_is_not_known_is_refused(tmp_path: Path, key: str, value: object, problem: str) -> None:
    keys = byte_level_keys(Tokenizer.from_str(trained()), "gpt-2") | {f"tokenizer.ggml.{key}": value}
    file = write(tmp_path, keys)
    with pytest.raises(CheckpointError) as refused:
        CheckpointTokenizer.from_dir(file)
    assert str(refused.value).startswith(f"{file}: tokenizer.ggml.{key}: {problem}")


def sentencepiece_keys(**changes: object) -> dict[str, Any]:
    """A vocabulary whose only merge is `a b`."""
    keys: dict[str, Any] = {
        "model": "llama",
        "tokens": ["<unk>", "a", "b", "ab"],
        "scores": [0.0] * 4,
        "token_type": [2, 1, 1, 1],
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | changes).items()}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("scores", ["0", "1", "2", "3"], "are not all finite numbers"),
        ("scores", [0.0, 0.0, float("nan"), 0.0], "are not all finite numbers"),
        ("scores", [0.0], "is not a list of the scores of 4 tokens"),
        ("tokens", ["<unk>", "a", "b", "a" * 513], "the token 3 has 513 characters, more than 512"),
    ],
    ids=["text", "nan", "few", "long"],
)
def test_a_vocabulary_whose_merges_cannot_be_found_is_refused(
    tmp_path: Path, key: str, value: object, problem: str
) -> None:
    file = write(tmp_path, sentencepiece_keys(**{key: value}))
    with pytest.raises(CheckpointError) as refused:
        CheckpointTokenizer.from_dir(file)
    assert str(refused.value).startswith(f"{file}: tokenizer.ggml.{key}: {problem}")


def test_the_bounds_of_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, sentencepiece_keys(tokens=["<unk>", "a", "b", "ab"]))
    monkeypatch.setattr("workers.checkpoints.gguf.tokenizers.MAX_TOKEN", 2)
    monkeypatch.setattr("workers.checkpoints.gguf.tokenizers.MAX_MERGES", 1)
    assert CheckpointTokenizer.from_dir(file).encode("ab", special=False)[-1] == 3
    monkeypatch.setattr("workers.checkpoints.gguf.tokenizers.MAX_MERGES", 0)
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.tokens: they have more than 0 merges"):
        CheckpointTokenizer.from_dir(file)


def test_the_chat_template_and_the_recommended_sampling(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    file = make_gguf(
        path,
        tmp_path / "model.gguf",
        metadata={
            "general.sampling.temp": 0.7,
            "general.sampling.top_k": 20,
            "tokenizer.chat_template.tool_use": "tools",
        },
    )
    made, original = CheckpointTokenizer.from_dir(file), CheckpointTokenizer.from_dir(path)
    messages = [{"role": "user", "content": "Hello <|im_end|>"}]
    assert made.chat is not None
    assert original.chat is not None
    assert made.chat.render(messages) == original.chat.render(messages)
    assert made.template_text == f"{original.template_text}\ntools"
    assert read_sampling_defaults(file) == {"temperature": 0.7, "top_k": 20}
    # Besides the one that is stated, the control tokens that end answers by their names.
    assert read_eos_ids(file) == read_eos_ids(path) | {0}
