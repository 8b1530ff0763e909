"""Bounds of the wire protocol, each defined once. The decoder of the receiver refuses what exceeds them."""

from typing import Annotated

from msgspec import Meta

PROTOCOL_VERSION = 3
"""Incremented when a frame changes in a way that an older peer would misread."""

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_FRAMES_PER_MESSAGE = 1024
MAX_NAME = 128
MAX_ADAPTERS = 64
"""Adapters of one model, which its requests choose."""
MAX_ADAPTER_BYTES = 8 * 1024 * 1024 * 1024
"""Bytes of the files of an adapter that is loaded at run time."""
MAX_ADAPTER_PATHS = 2
MAX_PATH = 4096
MAX_REASON = 4096
MAX_TEXT = 4 * 1024 * 1024
MAX_TOKENS = 1 << 20
MAX_TOKEN_ID = (1 << 31) - 1
MAX_MESSAGES = 4096
MAX_TOOLS_JSON = 1 << 20
MAX_TOOL_CALLS = 128
MAX_SEGMENTS = 4096
MAX_GRAMMAR = 512 * 1024
MAX_OVERTAKEN = 4
MAX_STOP_IDS = 64
MAX_BAD_WORDS = 256
MAX_ALLOWED_TOKENS = 16_384
MAX_BREAKERS = 64
MAX_DRY = 100.0
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_GATEWAYS = 16
MAX_SLOTS = 4096
MAX_QUEUE = 1 << 20
MAX_PINS = 4
MAX_PIN_S = 86_400
MAX_PREFIX_DIGESTS = 128
MAX_ROWS_BYTES = 4 * 1024 * 1024
MAX_EMBEDDING_BYTES = 12 * 1024 * 1024
MAX_IMAGES = 64
"""Images of one request."""
MAX_IMAGE_BYTES = 12 * 1024 * 1024
"""Bytes of all images of one request, as files."""
MAX_IMAGE_SIDE = 16_384
"""Pixels of a side of an image."""
MAX_IMAGE_PIXELS = 40_000_000
"""Pixels of an image."""
MAX_IMAGES_PIXELS = 160_000_000
"""Pixels of all images of one request: they are decoded in some 2 s, however small the files are."""
IMAGE_DIGEST_BYTES = 16
MAX_VECTOR_WIDTH = 65_536
"""Numbers of an embedding, or of the scores of a text."""
MAX_INSTRUCTION = 4096
"""Characters of an instruction by which pairs of texts are judged."""
MAX_POOLING_PROMPTS = 64
MAX_LABELS = 1024
"""Labels of a classifier of texts, which have names."""
"""Prompts that a checkpoint has by name for texts that are embedded."""
ROWS_DIGEST_BYTES = 16
MAX_TEMPERATURE = 100.0
MAX_TOP_K = 1 << 20
MAX_PENALTY = 2.0
MIN_KEEP = 0.05
"""The smallest part of a prompt that sparse prefill may keep."""
MIN_REPETITION = 0.01
MAX_REPETITION = 100.0
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_TOP_LOGPROBS = 20
MAX_PROMPT_PART = 256
MIN_LOGPROB = -9999.0
MAX_PIECE_BYTES = 1024
MAX_SEED = (1 << 63) - 1
MAX_COUNT = (1 << 63) - 1
MAX_SECONDS = 253_402_300_799
"""The last second of the year 9999, since 1970."""
MAX_MILLISECONDS = 7 * 24 * 3600 * 1000

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Label = Annotated[str, Meta(max_length=MAX_NAME)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
FilePath = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Tokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_TOKENS)]
MIN_ROW_NUMBER = -(1 << 62)
"""The least of the numbers below 0 that stand for the rows of an image among the tokens of cache rows: they are made of
a digest of 62 bits (`workers.engine.embeddings.image_rows`)."""
RowTokens = Annotated[tuple[Annotated[int, Meta(ge=MIN_ROW_NUMBER, le=MAX_TOKEN_ID)], ...], Meta(max_length=MAX_TOKENS)]
"""The tokens of cache rows, with numbers of rows of images among them."""
Position = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
RangeBounds = Annotated[tuple[Position, ...], Meta(max_length=MAX_TOKENS)]
"""Ranges of positions in a prompt, in rising order: the start and the end of each, one after the other."""
StreamId = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Time = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_MILLISECONDS)]
RowBytes = Annotated[bytes, Meta(max_length=MAX_ROWS_BYTES)]
VectorBytes = Annotated[bytes, Meta(max_length=4 * MAX_VECTOR_WIDTH)]
"""Numbers in float32, little-endian."""
RowsDigest = Annotated[bytes, Meta(max_length=ROWS_DIGEST_BYTES)]


def clip(text: str, limit: int = MAX_REASON) -> str:
    """Shorten a text of unknown origin (an exception, a device's message) to a bound, without characters that UTF-8
    cannot encode."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")
