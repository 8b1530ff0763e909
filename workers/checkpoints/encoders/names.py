"""The names of an encoder's tensors in the checkpoints of each family."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names of modules; those of a layer are behind `layers` and its number."""

    prefixes: tuple[str, ...]
    """Prefixes of all names, in checkpoints that have a head; others have none."""
    embedding: str
    layers: str
    qkv: tuple[str, ...]
    """Queries, keys and values: three matrices or one."""
    attention_out: str
    norm_attention: str
    gate_up: tuple[str, ...]
    """The first matrices of the MLP, the gate's first; or one with both."""
    down: str
    norm_mlp: str
    embedding_norm: str
    positions: str = ""
    token_types: str = ""
    final_norm: str = ""
    after_attention: str = ""
    """The norm of attention's output."""
    after_mlp: str = ""
    head_norms: tuple[str, ...] = ()
    """Those of queries and keys."""
    up_first: bool = False
    """A matrix with both halves begins with that which is multiplied, and ends with the gate."""


BERT = EncoderNames(
    prefixes=("bert.", "roberta."),
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    norm_attention="attention.output.LayerNorm",
    gate_up=("intermediate.dense",),
    down="output.dense",
    norm_mlp="output.LayerNorm",
)
MODERNBERT = EncoderNames(
    prefixes=("model.",),
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layers="layers.",
    qkv=("attn.Wqkv",),
    attention_out="attn.Wo",
    norm_attention="attn_norm",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
    norm_mlp="mlp_norm",
    final_norm="final_norm",
)
NOMIC = EncoderNames(
    prefixes=("nomic_bert.", "bert."),
    embedding="embeddings.word_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layers="encoder.layers.",
    qkv=("attn.Wqkv",),
    attention_out="attn.out_proj",
    norm_attention="norm1",
    gate_up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    norm_mlp="norm2",
)
GTE = EncoderNames(
    prefixes=("new.", "gte."),
    embedding="embeddings.word_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer.",
    qkv=("attention.qkv_proj",),
    attention_out="attention.o_proj",
    norm_attention="attn_ln",
    gate_up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    norm_mlp="mlp_ln",
    up_first=True,
)
LLAMA = EncoderNames(
    prefixes=("model.",),
    embedding="embed_tokens",
    embedding_norm="",
    layers="layers.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    norm_attention="input_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    norm_mlp="post_attention_layernorm",
    final_norm="norm",
)
GEMMA = replace(
    LLAMA,
    after_attention="post_attention_layernorm",
    norm_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
)
NAMES: Mapping[str, EncoderNames] = {
    "bert": BERT,
    "camembert": BERT,
    "gemma3_text": GEMMA,
    "gte": GTE,
    "llama_bidirec": LLAMA,
    "modernbert": MODERNBERT,
    "new": GTE,
    "nomic_bert": NOMIC,
    "roberta": BERT,
    "xlm-roberta": BERT,
}
"""By `model_type` of config.json; "new" is how Alibaba-NLP published GTE."""
HEADS = ("pooler.", "cls.", "lm_head.", "classifier.", "head.", "decoder.", "score.", "qa_outputs.")
"""Beginnings of the names of tensors that hidden states do not depend on."""
DERIVED = ("embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.inv_freq", "rotary_emb.cos_cached")
"""Names, or their ends, of tensors that follow from config.json."""
