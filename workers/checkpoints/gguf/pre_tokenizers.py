"""The pre-tokenizers that `tokenizer.ggml.pre` names, as the tokenizer.json of the original models has them.

The patterns are those that llama.cpp's src/llama-vocab.cpp quotes as the original ones; where it has no other than its
own, the models' pre-tokenizer is GPT-2's, after one that splits digits. A name is listed here only if its pattern is
known: a wrong one would give a model other tokens than those that it was trained on, without an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_LLAMA3 = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}|{_SIGNS}[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_SUFFIXES}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_SUFFIXES}?|{_START}{_UPPER}+{_LOWER}*{_SUFFIXES}?|\p{{N}}{{1,3}}|"
    rf"{_SIGNS}[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SIGNS}[\r\n/]*|{_SPACES}"
_SEED = rf"{_SUFFIXES}|{_START}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"

_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽ"
    "ᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-"
    "Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-"
    "ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""The letters with an upper and a lower case."""
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
)
_DEEPSEEK_V3 = (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+")
_DEEPSEEK_V3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    rf""" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"""
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way of splitting text before pairs are merged, and what else follows from its name."""

    pattern: str = ""
    """The regular expression of a piece; empty for GPT-2's."""
    earlier: tuple[str, ...] = ()
    """Regular expressions that split the text before, one after the other."""
    digits: bool = False
    """Each digit is a piece, before GPT-2's pattern is used, or behind the earlier ones."""
    nfc: bool = False
    """Text is normalized to composed characters first."""
    whole_words: bool = False
    """A piece that is a token is not merged from its bytes (`ignore_merges`)."""
    bos: bool = False
    """A plain prompt begins with BOS, unless the file says otherwise."""

    def steps(self) -> list[dict[str, Any]]:
        """The steps in the notation of tokenizer.json."""
        patterns = [*self.earlier, *([self.pattern] if self.pattern else [])]
        first: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in patterns
        ]
        if self.digits:
            first.append({"type": "Digits", "individual_digits": True})
        own = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": not patterns}
        return [*first, own]


_LLAMA3_WORDS = PreTokenizer(_LLAMA3, whole_words=True, bos=True)
_DIGITS = PreTokenizer(digits=True)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "llama-bpe": _LLAMA3_WORDS,
    "llama3": _LLAMA3_WORDS,
    "llama-v3": _LLAMA3_WORDS,
    "falcon3": _LLAMA3_WORDS,
    "falcon-h1": _LLAMA3_WORDS,
    "lfm2": _LLAMA3_WORDS,
    "midm-2.0": _LLAMA3_WORDS,
    "pixtral": _LLAMA3_WORDS,
    "chatglm-bpe": PreTokenizer(_LLAMA3),
    "glm4": PreTokenizer(_LLAMA3, whole_words=True),
    "dbrx": PreTokenizer(_LLAMA3),
    "smaug-bpe": PreTokenizer(_LLAMA3),
    "qwen2": PreTokenizer(_QWEN2, nfc=True),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2),
    "megrez": PreTokenizer(_QWEN2),
    "qwen35": PreTokenizer(_QWEN35, nfc=True),
    "gpt-4o": PreTokenizer(_GPT4O),
    "kanana2": PreTokenizer(_GPT4O),
    "llama4": PreTokenizer(_GPT4O),
    "minimax-m2": PreTokenizer(_GPT4O),
    "tekken": PreTokenizer(_TEKKEN, whole_words=True, bos=True),
    "seed-coder": PreTokenizer(_SEED),
    "deepseek-llm": PreTokenizer(earlier=_DEEPSEEK, digits=True, bos=True),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3_WORDS, earlier=_DEEPSEEK_V3, bos=True),
    "gpt-2": PreTokenizer(),
    "phi-2": PreTokenizer(),
    "olmo": PreTokenizer(),
    "command-r": PreTokenizer(digits=True, nfc=True),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
}
"""The pre-tokenizers by `tokenizer.ggml.pre`."""
