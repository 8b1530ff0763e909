"""Incremental detokenizer: pieces are whole characters and concatenate to the decoded text."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workers.text.samples import BOS, KINDS, TEXT, byte_level, sentencepiece, write
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.checkpoint_tokenizer import CheckpointTokenizer
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.tokenizer import Tokenizer

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
REPLACEMENT = "\ufffd"


@pytest.fixture(scope="module", params=KINDS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CheckpointTokenizer, object]:
    description = KINDS[request.param]()
    directory = write(tmp_path_factory.mktemp("tokenizer"), description)
    return CheckpointTokenizer.from_dir(directory), tokenizers.Tokenizer.from_str(description)


def texts() -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(TEXT) | st.characters(codec="utf-8"), max_size=40)


def stream_all(tokenizer: Tokenizer, tokens: list[int], prompt: list[int] = [], stops: tuple[str, ...] = ()) -> str:  # noqa: B006
    stream = IncrementalDetokenizer(tokenizer, prompt, stops)
    pieces = [stream.push(token) for token in tokens]
    return "".join(pieces) + stream.finish()


@QUICK
@given(text=texts())
def test_text_survives_the_round_trip(both: tuple[CheckpointTokenizer, tokenizers.Tokenizer], text: str) -> None:
    ours, library = both
    tokens = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, special=False) == tokens
    assert ours.decode(tokens) == library.decode(tokens)
    assert stream_all(ours, tokens) == library.decode(tokens)


@QUICK
@given(data=st.data())
def test_random_byte_level_tokens_stream_to_the_librarys_decode(data: st.DataObject) -> None:
    """Any tokens, and hence any bytes, including incomplete characters and invalid UTF-8."""
    library, ours = _byte_level()
    tokens = data.draw(st.lists(st.integers(0, library.get_vocab_size() + 3), max_size=40))
    whole = library.decode(tokens)
    assert ours.decode(tokens) == whole
    assert stream_all(ours, tokens) == whole


@QUICK
@given(chunks=st.lists(st.binary(max_size=6) | st.sampled_from(["😀".encode(), "é".encode(), b"\xf0\x9f", b"a"])))
def test_pieces_are_certain_when_they_are_sent(chunks: list[bytes]) -> None:
    """A U+FFFD before the end means that the bytes so far cannot become UTF-8."""
    tokens = list(b"".join(chunks))
    stream, sent = IncrementalDetokenizer(ByteTokenizer(), []), ""
    for count, token in enumerate(tokens, 1):
        sent += stream.push(token)
        so_far = bytes(tokens[:count])
        assert any((so_far + rest).decode("utf-8", "replace").startswith(sent) for rest in (b"", b"a", b"\x80\x80\x80"))
        assert len(so_far) - len(sent.encode()) <= 3 or REPLACEMENT in sent
    assert sent + stream.finish() == bytes(tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("character", ["é", "東", "😀"])
def test_a_split_character_waits_for_its_last_byte(character: str) -> None:
    stream = IncrementalDetokenizer(ByteTokenizer(), [])
    pieces = [stream.push(byte) for byte in character.encode()]
    assert pieces == [""] * (len(pieces) - 1) + [character]
    assert stream.finish() == ""


def test_an_incomplete_character_at_the_end_is_one_replacement() -> None:
    stream = IncrementalDetokenizer(ByteTokenizer(), [])
    assert [stream.push(byte) for byte in "😀".encode()[:3]] == ["", "", ""]
    assert stream.finish() == REPLACEMENT


def test_a_prompt_may_end_inside_a_character() -> None:
    first, *rest = "😀".encode()
    assert stream_all(ByteTokenizer(), rest, prompt=[*b"smile ", first]) == "😀"


def test_a_leading_space_is_kept_in_a_continuation_but_not_in_an_answer(tmp_path: Path) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, sentencepiece()))
    answer = ours.encode("the cat", special=False)
    assert ours.piece(answer[0]) == b" the"
    assert stream_all(ours, answer) == "the cat"
    assert stream_all(ours, answer, prompt=ours.encode("is", special=True)) == " the cat"
    assert stream_all(ours, answer, prompt=[1]) == "the cat", "BOS alone is no text to continue"


def test_byte_fallback_tokens_become_characters(tmp_path: Path) -> None:
    ours = CheckpointTokenizer.from_dir(write(tmp_path, sentencepiece()))
    tokens = ours.encode("the 東京", special=False)
    assert len(tokens) == 1 + 1 + 6
    stream = IncrementalDetokenizer(ours, [])
    assert [stream.push(token) for token in tokens] == ["the", " ", "", "", "東", "", "", "京"]


def test_special_tokens_are_silent_and_added_ones_are_not(tmp_path: Path) -> None:
    _, ours = _byte_level()
    bos, tool = ours.encode(BOS, special=False) + ours.encode("<tool_call>", special=False)
    assert stream_all(ours, [bos, tool, bos]) == "<tool_call>"


def test_the_cost_of_a_token_does_not_grow() -> None:
    """The state between tokens is bounded, for answers of any length and any bytes."""
    stream = IncrementalDetokenizer(ByteTokenizer(), [], ("x" * 256,))
    for _ in range(10_000):
        stream.push(0xFF)
        stream.push(ord("x"))
    assert len(stream._scanner._held) <= 255


def _byte_level() -> tuple[tokenizers.Tokenizer, CheckpointTokenizer]:
    from workers.text.text_encoder import TextEncoder
    from workers.text.token_bytes import TokenBytes

    library = tokenizers.Tokenizer.from_str(byte_level())
    silent = frozenset(t.content for t in library.get_added_tokens_decoder().values() if t.special)
    return library, CheckpointTokenizer(
        TextEncoder(library), TokenBytes({"type": "ByteLevel"}, library.id_to_token, silent)
    )
