"""The tasks that a checkpoint is served for, and the endpoints that serve them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocol.bounds import MAX_LABELS
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.documents import find_document, has_tokenizer
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.lone_config import LoneConfig
from workers.pooling.checkpoint_pooling import CheckpointPooling, refuse_logit_score
from workers.pooling.last_token import stated_labels

CHAT = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
COMPLETIONS = ("/v1/completions", "/api/generate")
EMBEDDINGS = ("/v1/embeddings", "/api/embed")
RERANK = ("/v1/rerank", "/v1/score")
CLASSIFY = ("/v1/classify",)
RanksBy = Literal["", "cross-encoder", "decoder", "embeddings"]
CROSS_ENCODER: RanksBy = "cross-encoder"
DECODER: RanksBy = "decoder"


@dataclass(frozen=True, slots=True)
class ServedTasks:
    """The tasks of a model, as far as its descriptions state them."""

    chat: bool = False
    completions: bool = False
    embedding_width: int = 0
    """The numbers of an embedding; 0 if the model makes none."""
    labels: int = 0
    """The scores of a classifier; 0 without one."""
    rerank: RanksBy = ""
    """By what texts are compared: a classifier of one of two kinds, or the cosine of embeddings. Empty for neither, as
    for a classifier with several labels."""
    classifies: bool = False
    """It gives labels to single texts, which a decoder that ranks pairs does not."""

    @classmethod
    def of(cls, path: Path, config: ModelConfig | LoneConfig | EncoderConfig) -> "ServedTasks":
        """Read the files of a checkpoint that state its pooling, and its dense layers if it has any. Raises
        `CheckpointError` for a pooling that a load refuses."""
        chat = has_tokenizer(path) and has_chat_template(path)
        if isinstance(config, LoneConfig):
            return cls(chat, True)
        if gguf_path(path) is not None:
            return cls(chat, True, config.hidden_size, rerank="embeddings")
        if isinstance(config, EncoderConfig):
            refuse_logit_score(path)
            labels, classifier = config.labels, CROSS_ENCODER
        else:
            labels, classifier = stated_labels(path), DECODER
        generates = not labels and isinstance(config, ModelConfig)
        stated = CheckpointPooling.of(path, "last" if generates else "mean")
        width = 0 if labels and not stated.stated else stated.width(config.hidden_size)
        by: RanksBy = "" if labels > 1 else classifier if labels else "embeddings"
        classifies = (labels == 1 and isinstance(config, EncoderConfig)) or 1 < labels <= MAX_LABELS
        return cls(generates and chat, generates, width, labels, by, classifies)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The paths at which the model answers."""
        served = (
            (CHAT, self.chat),
            (COMPLETIONS, self.completions),
            (EMBEDDINGS, self.embedding_width),
            (RERANK, self.rerank),
            (CLASSIFY, self.classifies),
        )
        return tuple(path for paths, serves in served if serves for path in paths)


def has_chat_template(path: Path) -> bool:
    """Return whether a checkpoint has a chat template."""
    file = gguf_path(path)
    if file is not None:
        return "tokenizer.chat_template" in GgufFile.open(file).metadata
    if (path / "chat_template.jinja").is_file():
        return True
    return bool((find_document(path, "tokenizer_config.json") or {}).get("chat_template"))
