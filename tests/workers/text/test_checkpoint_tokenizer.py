"""Tokenizer of a checkpoint: files, special tokens, chat templates and end-of-sequence ids."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders

from tests.checkpoints import EOS_ID, make_tokenizer
from tests.workers.text.samples import BOS, EOS, TOOL, byte_level, sentencepiece, write
from workers.checkpoints.json_files import CheckpointError
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.checkpoint_tokenizer import CheckpointTokenizer
from workers.text.vocabulary_gaps import LAST, MAX_ID

USER = {"role": "user", "content": "hi"}


def test_a_whole_checkpoint(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    ours = CheckpointTokenizer.from_dir(tmp_path)
    assert ours.eos_ids == {EOS_ID}
    assert ours.chat is not None
    prompt = ours.chat.render([USER])
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    tokens = ours.encode(prompt, special=False)
    assert EOS_ID in tokens
    assert ours.decode(tokens) == "user\nhi\nassistant\n"
    assert max(tokens) < ours.vocab_size <= 512
    assert ours.longest_token == len("<|endoftext|>")


def test_only_the_tokenizer_is_needed(tmp_path: Path) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, byte_level()))
    assert ours.chat is None
    assert ours.chat_template is None
    assert ours.eos_ids == frozenset()


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_bos_comes_from_the_post_processor(tmp_path: Path, kind: Any) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, kind()))
    plain, special = ours.encode("The cat", special=False), ours.encode("The cat", special=True)
    assert special[1:] == plain
    assert tokenizers.Tokenizer.from_str(kind()).id_to_token(special[0]) == BOS


def test_special_tokens_of_older_checkpoints_have_a_file_of_their_own(tmp_path: Path) -> None:
    template = {"chat_template": "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}", "eos_token": EOS}
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    write(tmp_path, byte_level(), tokenizer_config=template, special_tokens_map=names)
    chat = CheckpointTokenizer.from_dir(tmp_path).chat
    assert chat is not None
    assert chat.render([{"role": "user", "content": "hi"}]) == f"<s>{EOS}hi"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"generation_config": {"eos_token_id": 7}}, {7}, id="int"),
        pytest.param({"generation_config": {"eos_token_id": [7, 8]}}, {7, 8}, id="list"),
        pytest.param({"config": {"eos_token_id": 9}}, {9}, id="config"),
        pytest.param({"config": {"eos_token_id": None}}, set(), id="null"),
        pytest.param({"config": {"text_config": {"eos_token_id": 9}}}, {9}, id="language-model"),
        pytest.param({"config": {"eos_token_id": 0, "text_config": {"eos_token_id": 9}}}, {0}, id="outside"),
        pytest.param({"special_tokens_map": {"eos_token": EOS}}, {1}, id="map"),
        pytest.param({"tokenizer_config": {"eos_token": EOS}}, {1}, id="named"),
        pytest.param({"tokenizer_config": {"eos_token": {"content": EOS}}}, {1}, id="named-object"),
        pytest.param(
            {
                "generation_config": {"eos_token_id": [7]},
                "config": {"eos_token_id": 9},
                "tokenizer_config": {"eos_token": EOS},
            },
            {1, 7, 9},
            id="all-of-them",
        ),
    ],
)
def test_end_of_sequence_ids(tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
    assert CheckpointTokenizer.from_dir(write(tmp_path, byte_level(), **files)).eos_ids == expected


@pytest.mark.parametrize(
    ("config", "jinja", "plain", "tools"),
    [
        pytest.param({"chat_template": "one"}, None, "one", "one", id="string"),
        pytest.param(
            {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]},
            None,
            "a",
            "b",
            id="list",
        ),
        pytest.param({"chat_template": "one"}, "file", "file", "file", id="file-first"),
        pytest.param(
            {"bos_token": {"content": BOS}, "chat_template": "{{ bos_token }}"}, None, BOS, BOS, id="specials"
        ),
    ],
)
def test_chat_templates(tmp_path: Path, config: Any, jinja: str | None, plain: str, tools: str) -> None:
    write(tmp_path, byte_level(), tokenizer_config=config)
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    ours = CheckpointTokenizer.from_dir(tmp_path)
    assert ours.chat is not None
    assert ours.chat.render([USER]) == plain
    assert ours.chat.render([USER], [{"type": "function"}]) == tools


def _with_decoder(decoder: Any) -> str:
    description = json.loads(byte_level())
    description["decoder"] = decoder
    return json.dumps(description)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        pytest.param(
            {"tokenizer_config": {"chat_template": 5}}, "tokenizer_config.json: chat_template", id="template-type"
        ),
        pytest.param({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "chat_template", id="template-entry"),
        pytest.param({"tokenizer_config": {"chat_template": []}}, "default", id="no-default"),
        pytest.param({"tokenizer_config": {"chat_template": "{% if %}"}}, "does not compile", id="template-syntax"),
        pytest.param(
            {"generation_config": {"eos_token_id": "7"}}, "generation_config.json: eos_token_id", id="eos-type"
        ),
        pytest.param({"config": {"eos_token_id": [-1]}}, "config.json: eos_token_id", id="eos-negative"),
        pytest.param({"config": []}, "config.json: is not a JSON object", id="not-an-object"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, files: dict[str, Any], names: str) -> None:
    with pytest.raises(CheckpointError, match=names):
        CheckpointTokenizer.from_dir(write(tmp_path, byte_level(), **files))


@pytest.mark.parametrize(
    ("decoder", "names"),
    [
        pytest.param(json.loads(decoders.CTC().__getstate__()), "'CTC'", id="ctc"),
        pytest.param({"type": "Strip", "content": " ", "start": 3, "stop": 0}, "'Strip'", id="strip-three"),
        pytest.param(
            {
                "type": "Sequence",
                "decoders": [json.loads(decoders.ByteLevel().__getstate__()), {"type": "ByteFallback"}],
            },
            "mixes",
            id="mix",
        ),
        pytest.param(None, "without a decoder", id="none"),
    ],
)
def test_an_unknown_decoder_is_refused(tmp_path: Path, decoder: Any, names: str) -> None:
    with pytest.raises(CheckpointError, match=f"decoder: .*{names}"):
        CheckpointTokenizer.from_dir(write(tmp_path, _with_decoder(decoder)))


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 1}'])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        CheckpointTokenizer.from_dir(write(tmp_path, content))


@pytest.mark.parametrize(
    "make", [lambda d: CheckpointTokenizer.from_dir(write(d, byte_level())), lambda d: ByteTokenizer()]
)
def test_any_string_can_be_encoded(tmp_path: Path, make: Any) -> None:
    ours = make(tmp_path)
    assert ours.decode(ours.encode("a\ud800b", special=False)) == "a?b"


def test_bytes_as_tokens() -> None:
    ours = ByteTokenizer()
    assert ours.encode("é", special=True) == [0xC3, 0xA9]
    assert ours.decode([0xC3, 0xA9, 256, 999]) == "é"
    assert ours.chat.render([USER]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ours.chat.render([USER], add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_unknown_ids_are_not_cached(tmp_path: Path) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, byte_level()))
    assert ours.decode(range(1 << 20, (1 << 20) + 1000)) == ""
    assert len(ours._token_bytes._known) == 0


def with_gaps(description: str, named: bool) -> str:
    """Leave the ids 100 to 109 out, and the ten before the added tokens; these are in the model's vocabulary if they
    are `named` there."""
    made = json.loads(description)
    first: int = made["added_tokens"][2]["id"]

    def moved(ident: int) -> int:
        return ident + 10 * (ident >= 100) + 10 * (ident >= first)

    plain = {token: moved(ident) for token, ident in made["model"]["vocab"].items()}
    added = [each | {"id": moved(each["id"])} for each in made["added_tokens"]]
    added[2]["special"] = True
    made["model"]["vocab"] = plain | ({each["content"]: each["id"] for each in added} if named else {})
    return json.dumps(made | {"added_tokens": added})


@pytest.mark.parametrize("named", [False, True], ids=["added", "in-the-vocabulary"])
def test_ids_that_no_token_has_leave_the_others_alone(tmp_path: Path, named: bool) -> None:
    dense = CheckpointTokenizer.from_dir(write(tmp_path / "dense", byte_level()))
    ours = CheckpointTokenizer.from_dir(write(tmp_path / "gaps", with_gaps(byte_level(), named)))
    first = dense.added_tokens[TOOL]
    text = f"{BOS}The cat{TOOL}two words is {EOS}"

    def moved(ident: int) -> int:
        return ident + 10 * (ident >= 100) + 10 * (ident >= first)

    assert ours.vocab_size == dense.vocab_size + 20
    assert ours.added_tokens == {content: moved(ident) for content, ident in dense.added_tokens.items()}
    ids = ours.encode(text, special=True)
    assert ids == [moved(ident) for ident in dense.encode(text, special=True)]
    assert ours.decode(ids) == dense.decode(dense.encode(text, special=True)).replace(TOOL, "")
    assert ours.longest_token == dense.longest_token
    assert [ours.piece(ident) for ident in (100, 109, moved(first) - 1, ours.vocab_size)] == [b""] * 4
    marked, mark = ours.mark_control_tokens(f"{BOS}{TOOL}")
    plain = ours.encode_marked(marked, mark)
    assert not {moved(0), moved(first)} & set(plain)
    assert ours.decode(plain) == BOS + TOOL
    assert ours.encode_marked(f"{BOS}{TOOL}", mark) == [moved(0), moved(first)]


def test_the_token_behind_gaps_is_not_found_in_text(tmp_path: Path) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, with_gaps(byte_level(), named=False)))
    for ids in (ours.encode(LAST, special=False), ours.encode_short(LAST), ours.encode_marked(LAST, "\ufdd1")):
        assert ids
        assert max(ids) < ours.vocab_size


@pytest.mark.parametrize("ident", [MAX_ID, MAX_ID + 1])
def test_an_id_is_bounded(tmp_path: Path, ident: int) -> None:
    made = json.loads(byte_level())
    made["model"]["vocab"]["far"] = ident
    write(tmp_path, json.dumps(made))
    if ident == MAX_ID:
        assert CheckpointTokenizer.from_dir(tmp_path).vocab_size == MAX_ID + 1
    else:
        with pytest.raises(CheckpointError, match=r"model\.vocab"):
            CheckpointTokenizer.from_dir(tmp_path)
