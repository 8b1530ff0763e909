"""Features of a loaded model, as its worker states them to the gateway."""

from protocol.events import Capabilities
from workers.process.loading import Loaded


def served_capabilities(loaded: Loaded, *, embeddings: bool) -> Capabilities:
    """Return the features of a worker. With `embeddings` it takes rows of embeddings in place of prompts."""
    tokenizer, pooling = loaded.tokenizer, loaded.pooling
    writes = pooling.generates and tokenizer is not None
    return Capabilities(
        chat=writes and tokenizer is not None and tokenizer.chat is not None,
        text=tokenizer is not None,
        prompt_logprobs=pooling.generates,
        logprobs=pooling.generates,
        grammar=pooling.generates and loaded.grammars is not None,
        tools=writes and loaded.formats.tools is not None,
        reasoning=writes and loaded.formats.reasoning is not None,
        infill=writes and tokenizer is not None and tokenizer.infill is not None,
        embedding_width=loaded.engine.capabilities.embedding_width if embeddings else 0,
        mtp=loaded.mtp,
        images=loaded.images is not None,
        generates=pooling.generates,
        vector_width=pooling.width,
        pooling_prompts=tuple(sorted(pooling.prompts)),
        labels=pooling.labels,
        pairs=pooling.pairs,
        label_names=pooling.label_names,
        decoder_scores=pooling.classifier is not None and pooling.classifier.last,
    )
