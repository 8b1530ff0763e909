"""Pairs of texts, with the special tokens and segments of WordPiece and unigram tokenizers of encoders."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from workers.checkpoints.json_files import CheckpointError
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "is", "em", "##bed", "##ding", "it", "'", "s", "!")
PIECES = ("<s>", "<pad>", "</s>", "<unk>", "\u2581what", "\u2581is", "\u2581it", "em", "bed", "\u2581", "!")


def wordpiece(path: Path) -> Tokenizer:
    library = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(list(WORDS[:4]))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    library.save(str(path / "tokenizer.json"))
    return library


def unigram(path: Path) -> Tokenizer:
    library = Tokenizer(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=3))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(list(PIECES[:4]))
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    library.save(str(path / "tokenizer.json"))
    return library


def test_wordpiece(tmp_path: Path) -> None:
    library, tokenizer = wordpiece(tmp_path), CheckpointTokenizer.from_dir(tmp_path)
    expected = library.encode("What is", "embedding!")
    assert tokenizer.encode_pair("What is", "embedding!") == (expected.ids, expected.type_ids)
    assert expected.ids == [2, 4, 5, 3, 6, 7, 8, 12, 3]
    assert expected.type_ids == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert tokenizer.encode("What is", special=True) == library.encode("What is").ids == [2, 4, 5, 3]
    assert tokenizer.decode(expected.ids) == "what is embedding !"
    assert tokenizer.piece(7) == b"bed"
    assert tokenizer.piece(4, first=True) == b"what"
    assert tokenizer.piece(4) == b" what"
    assert tokenizer.encode_pair("\ud800", "is") == tokenizer.encode_pair("?", "is"), "no lone surrogate"


def test_unigram(tmp_path: Path) -> None:
    library, tokenizer = unigram(tmp_path), CheckpointTokenizer.from_dir(tmp_path)
    expected = library.encode("what is", "it!")
    assert tokenizer.encode_pair("what is", "it!") == (expected.ids, expected.type_ids)
    assert expected.ids == [0, 4, 5, 2, 2, 6, 10, 2]
    assert set(expected.type_ids) == {0}
    assert tokenizer.decode(expected.ids) == "what is it!"


def test_texts_are_not_truncated_or_padded(tmp_path: Path) -> None:
    wordpiece(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    description["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    ids, types = CheckpointTokenizer.from_dir(tmp_path).encode_pair("it " * 20, "is " * 20)
    assert len(ids) == len(types) == 43


def test_bytes() -> None:
    assert ByteTokenizer().encode_pair("a", "bc") == ([97, EOS_ID, 98, 99, EOS_ID], [0, 0, 1, 1, 1])


@pytest.mark.reference
@pytest.mark.parametrize("name", [None, "BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"do_lower_case": True}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True}],
    ids=["unset", "lower", "cased", "cased without accents"],
)
@pytest.mark.parametrize("stored", [False, True])
def test_case_and_accents_are_those_of_transformers(
    tmp_path: Path, name: str | None, fields: dict[str, bool], stored: bool
) -> None:
    """Those of BERT's tokenizers are in tokenizer_config.json, and in tokenizer.json for other classes."""
    import transformers

    library = wordpiece(tmp_path)
    library.normalizer = normalizers.BertNormalizer(lowercase=stored)
    library.add_tokens(["What", "caf\u00e9", "cafe"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    named = {} if name is None else {"tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields | named))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = CheckpointTokenizer.from_dir(tmp_path)
    for text in ("What is it", "what", "is IT"):
        assert ours.encode(text, special=True) == theirs(text)["input_ids"]


def test_a_case_that_is_no_boolean_is_refused(tmp_path: Path) -> None:
    wordpiece(tmp_path)
    fields = {"tokenizer_class": "BertTokenizer", "do_lower_case": "no"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json.*do_lower_case"):
        CheckpointTokenizer.from_dir(tmp_path)


@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Sequence([]), normalizers.BertNormalizer(lowercase=False), normalizers.NFC()],
    ids=["none", "BERT", "NFC"],
)
def test_sentence_transformers_lower_the_case_of_any_tokenizer(
    tmp_path: Path, normalizer: normalizers.Normalizer
) -> None:
    library = wordpiece(tmp_path)
    library.normalizer = normalizer
    library.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "sentence_bert_config.json"
    lower = library.encode("what is it").ids
    for value, text, ids in (
        (False, "what is it", lower),
        (False, "WHAT is IT", library.encode("WHAT is IT").ids),
        (True, "WHAT is IT", lower),
    ):
        file.write_text(json.dumps({"max_seq_length": 64, "do_lower_case": value}))
        assert CheckpointTokenizer.from_dir(tmp_path).encode(text, special=True) == ids
    assert lower != library.encode("WHAT is IT").ids
    file.write_text(json.dumps({"do_lower_case": 1}))
    with pytest.raises(CheckpointError, match=r"sentence_bert_config.json.*do_lower_case: 1 is not true or false"):
        CheckpointTokenizer.from_dir(tmp_path)
