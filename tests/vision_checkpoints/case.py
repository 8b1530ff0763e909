"""The form of a family's tiny checkpoint, and the values that several have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.checkpoints import EOS_ID

VOCAB = 640
"""Tokens of each checkpoint: those of `tests.checkpoints`, and those of the family behind them."""
CHATML = ("<|im_start|>", "<|im_end|>")
TEXT: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": VOCAB,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": EOS_ID,
    "pad_token_id": 0,
}
SECTIONS: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}
SIGLIP: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@dataclass(frozen=True)
class VisionCase:
    """A family's checkpoint."""

    name: str
    """The class in transformers, without its ending."""
    text: Mapping[str, Any]
    """Fields of `text_config`, beside `TEXT`."""
    vision: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    """The contents of preprocessor_config.json."""
    specials: tuple[str, ...]
    template: str
    tokens: Mapping[str, str]
    """Fields of config.json that have the ids of special tokens."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of config.json."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """The contents of processor_config.json."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Names of special tokens, as tokenizer_config.json has them in `extra_special_tokens`."""
    model_type: str = ""
    """The `model_type` of config.json, where it is not the name of the case."""
