"""Small random-weight checkpoints of encoders in the layout in which each family is published, made from a seed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints import write_safetensors
from workers.checkpoints.encoders.reading import read_encoder
from workers.checkpoints.encoders.tensors import encoder_tensors
from workers.engine.runner import Chunk

SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 72,
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "bert": {**SIZES, "hidden_act": "gelu", "type_vocab_size": 2},
    "gte": {**SIZES, "hidden_act": "gelu", "type_vocab_size": 1, "rope_theta": 20000.0, "pad_token_id": 1},
    "modernbert": {
        **SIZES,
        "num_hidden_layers": 3,
        "global_attn_every_n_layers": 2,
        "local_attention": 10,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "gemma3_text": {
        **SIZES,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 10,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rms_norm_eps": 1e-6,
        "use_bidirectional_attention": True,
    },
    "llama_bidirec": {**SIZES, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "pooling": "avg"},
    "nomic_bert": {**SIZES, "hidden_act": "silu", "type_vocab_size": 2},
    "xlm-roberta": {**SIZES, "max_position_embeddings": 74, "type_vocab_size": 1, "pad_token_id": 1},
}
"""config.json by family, all for sequences of up to 72 tokens."""
SAME_FORM = {"camembert": "xlm-roberta", "new": "gte", "roberta": "xlm-roberta"}
"""Further families, by that whose fields and tensors they have."""
CLASSES = {
    "bert": "Bert",
    "gemma3_text": "Gemma3Text",
    "gte": "Gte",
    "llama_bidirec": "LlamaBidirectional",
    "modernbert": "ModernBert",
    "nomic_bert": "NomicBert",
    "xlm-roberta": "XLMRoberta",
}
"""The beginnings of the classes in transformers."""
PREFIXES = {
    "bert": "bert.",
    "gte": "new.",
    "modernbert": "model.",
    "nomic_bert": "nomic_bert.",
    "xlm-roberta": "roberta.",
}
"""Prefixes of the encoder's tensors in a checkpoint with a head."""
LENGTHS = (5, 33, 72, 1, 17)
"""Tokens of the sequences that tests compute: within a block of eight, several of them, the most, and the least."""


def make_encoder(directory: Path, family: str, *, labels: int = 0, **fields: Any) -> Path:
    """Write a checkpoint: of the encoder alone, or with `labels` of a sequence classifier. `fields` are of config.json.
    Weights are such that leaving one out shows."""
    described, family = family, SAME_FORM.get(family, family)
    kind = "ForSequenceClassification" if labels else "Model"
    names = {"id2label": {str(label): f"L{label}" for label in range(labels)}} if labels else {}
    description = {"model_type": described, "architectures": [CLASSES[family] + kind], "dtype": "float32"}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**description, **FIELDS[family], **names, **fields}))
    config = read_encoder(directory)
    tensors = encoder_tensors(config, PREFIXES[family] if labels else "")
    shapes = {source: shape for tensor in tensors for source, shape in tensor.sources}
    shapes |= head_shapes(family, config.hidden_size, labels) if labels else {}
    random = np.random.default_rng(11)
    values = {}
    for name, shape in shapes.items():
        sample = random.standard_normal(shape, np.float32)
        norm = name.endswith("weight") and len(shape) == 1
        values[name] = (
            1 - config.norm_offset + sample / 8 if norm else sample / (1 if len(shape) == 1 else shape[-1] ** 0.5)
        )
    write_safetensors(directory / "model.safetensors", values)
    return directory


def head_shapes(family: str, hidden: int, labels: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a sequence classifier."""
    dense, out, *norms = {
        "modernbert": ("head.dense", "classifier", "head.norm"),
        "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
    }.get(family, (f"{PREFIXES[family]}pooler.dense", "classifier"))
    shapes: dict[str, tuple[int, ...]] = {f"{dense}.weight": (hidden, hidden), f"{out}.weight": (labels, hidden)}
    shapes[f"{out}.bias"] = (labels,)
    shapes |= {f"{norm}.weight": (hidden,) for norm in norms}
    return shapes if norms else shapes | {f"{dense}.bias": (hidden,)}


def sequences(token_types: int = 0) -> list[Chunk]:
    """Return a sequence of each of `LENGTHS`, with segments if there are several."""
    random, out = np.random.default_rng(5), []
    for slot, length in enumerate(LENGTHS):
        tokens = tuple(map(int, random.integers(3, SIZES["vocab_size"], length)))
        types = tuple(int(at > length // 3) for at in range(length)) if token_types > 1 else None
        out.append(Chunk(slot, tokens, 0, 0, token_types=types))
    return out
