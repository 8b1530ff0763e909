"""The graphs of a runner, and when each is compiled: decode in batch buckets, prefill in chunk lengths, scoring,
sampling, and copying rows.

Each kind has size buckets. A graph of a larger size computes what one of a smaller size does, with the same tokens on a
CPU (docs/adr/0014), so a few graphs can serve everything and the rest may be compiled later (docs/adr/0019).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import LOOKED_ROWS
from workers.iree.build.tower_graphs import TowerGraphs
from workers.iree.kernels.ir.live_rows import SEQUENCE_ROWS
from workers.iree.lora.lora_plan import ADAPTED, LoraPlan
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import Stored
from workers.iree.model.tiled_ops import TiledOps
from workers.vision.config import VisionConfig

PREFILL_CHUNKS = (32, 64, 128, 256, 512)
PREFILL_BLOCK = SEQUENCE_ROWS
"""Rows of a prefill graph that belong to one slot. Small blocks waste fewer rows when short prompts share a call; eight
rows already fill attention's registers."""
SCORE_CHUNK = 128
"""Rows of the scoring graph; their logits leave the device."""
MTP_ROWS = 32
"""Rows of the graph that fills the cache of the head for multi-token prediction."""
SAMPLE = "sample"
"""The graph that samples on a CPU, for any number of rows and all of their parameters
(`workers.iree.kernels.sampling.sample`)."""
SAMPLING = (("unfiltered", "narrow"),)
"""Graphs that sample on other devices, those of one module together."""
QUERIES = "queries"
"""The graph of the queries of a few rows."""
EMBEDDED = "embedded"
"""The graphs that prefill prompts with rows of embeddings."""
HIDDEN = "hidden"
"""The graph that prefills and returns the hidden states of all rows."""
ON_DEMAND = (("edit", "mask"), ("report",))
"""Graphs that edit, mask and report logits: compiled when a request first needs one."""
WIDE_SAMPLING = (("filter",), ("full",))
"""The graphs that sample on other devices if the top candidates do not contain all tokens that the filters keep, and if
a row has typical_p or XTC."""
MOST_DRAFTED = 16
"""Most rows of the decode graph for drafts beyond one of each slot: of more rows each takes about as long as those
before."""


def decode_buckets(slots: int) -> tuple[int, ...]:
    """Return the powers of two below `slots`, and `slots` itself."""
    return (*(1 << i for i in range((slots - 1).bit_length())), slots)


def prefill_chunks(context: int) -> tuple[int, ...]:
    """Return the chunk lengths for a context, in whole blocks: none needs to be longer than the context."""
    return tuple(sorted({min(chunk, -(-context // PREFILL_BLOCK) * PREFILL_BLOCK) for chunk in PREFILL_CHUNKS}))


@dataclass(frozen=True, slots=True)
class GraphList:
    """The graphs of one model on one device, each by its kind and size: `decode_8`."""

    config: ModelConfig
    ops: TiledOps | PlainOps
    cache: CacheLayout
    weights: Sequence[Stored]
    buckets: tuple[int, ...] = field(default=())
    chunks: tuple[int, ...] = field(default=())
    embeddings: bool = False
    """There are prefill graphs that take rows of embeddings, beside those that do not."""
    queries: bool = False
    """There is a graph of the queries of a few rows, for the scores of sparse prefill."""
    vision: VisionConfig | None = None
    """The vision tower, if there is one. Its rows of embeddings are taken as those of `embeddings` are."""
    lora: LoraPlan | None = None
    """The matrices that adapters change. There are graphs of steps whose rows have adapters, beside those of steps
    without."""

    def required(self) -> list[tuple[str, ...]]:
        """Return the fewest graphs that can serve everything, those of one module together."""
        if isinstance(self.ops, PlainOps):
            # Those with weights are one module, so that the device holds them once.
            steps = [name for group in self._steps() for name in group]
            steps += [f"{EMBEDDED}_{size}" for size in self.embedded_sizes]
            score = f"score_{self.score_chunk}"
            scores = [score] if self.lora is None else [score, ADAPTED + score]
            return [(*steps, *scores, "copy"), *self._tower_groups]
        largest = (("decode", self.buckets), ("prefill", self.prefill_sizes), ("head", self.head_sizes))
        embedded = [(f"{EMBEDDED}_{size}",) for size in self.embedded_sizes]
        decode, *others = ((f"{kind}_{sizes[-1]}",) for kind, sizes in largest)
        adapted = [] if self.lora is None else [(ADAPTED + group[0],) for group in (decode, others[0], *embedded)]
        before = [decode, *adapted[:1], *self._queries_groups(), *others, (SAMPLE,), *embedded, *adapted[1:]]
        return [*before, *self._tower_groups]

    def first(self) -> list[tuple[str, ...]]:
        """Return the required graphs without which nothing is served. Until the others are there, a decode graph of
        enough rows computes prompts, with the same bits, and numpy samples. Nothing computes queries in place of their
        graph."""
        required = self.required()
        if self.embeddings:  # which no decode graph takes
            return required
        if not self.block or self.buckets[-1] < self.block:
            return required
        return required[: 1 + (self.lora is not None) + len(self._queries_groups())]

    def optional(self) -> list[tuple[str, ...]]:
        """Return the graphs that make serving cheaper, those first that are missed most."""
        if isinstance(self.ops, PlainOps):
            return self._on_logits_groups(SAMPLING)
        return [group for group in self._steps() if group not in self.required()]

    def rare(self) -> list[tuple[str, ...]]:
        """Return the graphs that are compiled when they are first missed: most servers never need them."""
        if isinstance(self.ops, PlainOps):
            return self._on_logits_groups(ON_DEMAND + WIDE_SAMPLING)
        drafts = [(f"decode_{self.draft_rows}",), *self._on_logits_groups(ON_DEMAND, [self.draft_rows])]
        hidden, score = [(f"{HIDDEN}_{size}",) for size in self.hidden_sizes], (f"score_{self.score_chunk}",)
        adapted = [] if self.lora is None else [(ADAPTED + name,) for (name,) in (score, drafts[0])]
        return [score, *hidden, *self._on_logits_groups(ON_DEMAND), *drafts, *adapted]

    def everything(self) -> list[tuple[str, ...]]:
        return self.required() + self.optional() + self.rare()

    def _on_logits_groups(
        self, modules: Sequence[Sequence[str]], sizes: Sequence[int] | None = None
    ) -> list[tuple[str, ...]]:
        rows = self.sample_sizes if sizes is None else sizes
        return [tuple(f"{kind}_{each}" for kind in kinds) for kinds in modules for each in rows]

    def _steps(self) -> list[tuple[str, ...]]:
        decode = [(f"decode_{bucket}",) for bucket in self.buckets]
        prefill = [(f"prefill_{size}",) for size in reversed(self.prefill_sizes)]
        heads = [(f"head_{size}",) for size in self.head_sizes]
        adapted = [] if self.lora is None else [(ADAPTED + name,) for (name,) in (*decode, *prefill)]
        return [*decode[:1], *heads[:1], *prefill, *decode[1:], *heads[1:], *self._mtp_groups(), *adapted]

    def _queries_groups(self) -> list[tuple[str, ...]]:
        return [(f"{QUERIES}_{LOOKED_ROWS}",)] if self.queries else []

    def _mtp_groups(self) -> list[tuple[str, ...]]:
        if not self.config.mtp:
            return []
        return [(f"rows_{MTP_ROWS}",), *((f"mtp_{size}",) for size in self.mtp_sizes)]

    @property
    def draft_rows(self) -> int:
        """Rows of the decode graph that verifies drafts when one row of each slot leaves no room for them; 0 if rows
        are not exact."""
        if isinstance(self.ops, PlainOps):
            return 0
        return self.cache.slots + min(self.cache.slots, MOST_DRAFTED)

    @property
    def block(self) -> int:
        """Rows of a prefill graph that belong to one slot; 0 is all of them."""
        return 0 if isinstance(self.ops, PlainOps) else PREFILL_BLOCK

    @property
    def prefill_sizes(self) -> tuple[int, ...]:
        """Size buckets of the rows of a prefill call. The kernels for CPUs leave padding rows out, so that one size is
        enough; another one divides a short prompt's attention among many threads."""
        if isinstance(self.ops, PlainOps):
            return self.chunks
        shortest = self.chunks[0]
        split = 2 * self.ops.threads > self.cache.heads * (shortest // self.block)
        return tuple(sorted({*([shortest] if split else []), self.chunks[-1]}))

    @property
    def embedded_sizes(self) -> tuple[int, ...]:
        """Size buckets of a prefill call with rows of embeddings: where padding rows are left out, one is enough."""
        if not self.embeddings:
            return ()
        return self.prefill_sizes if isinstance(self.ops, PlainOps) else self.prefill_sizes[-1:]

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """Size buckets of a prefill call that returns all hidden states; none where the scoring graph does."""
        return () if isinstance(self.ops, PlainOps) else self.prefill_sizes[-1:]

    @property
    def embedding_width(self) -> int:
        """The hidden size of the model without padding, where prompts may have rows of embeddings; otherwise 0."""
        if self.vision is not None:
            return self.vision.width
        return self.hidden_width if self.embeddings else 0

    @property
    def hidden_width(self) -> int:
        """The hidden size of the model without padding."""
        padding = self.ops.padding if isinstance(self.ops, TiledOps) else None
        return self.config.hidden_size if padding is None else padding.hidden.size

    @property
    def tower(self) -> TowerGraphs | None:
        """The graphs of the vision tower."""
        return None if self.vision is None else TowerGraphs.of(self.vision, self.ops)

    @property
    def _tower_groups(self) -> list[tuple[str, ...]]:
        return [] if self.tower is None else [self.tower.names]

    @property
    def embedded_parts(self) -> int:
        """Parts of a row of embeddings, each of the hidden size: that of the first layer, and those of the deep
        stack."""
        return 1 if self.vision is None else 1 + len(self.vision.taps)

    @property
    def has_ends(self) -> bool:
        """Graphs that take rows of embeddings take `StepRows.ends` as well."""
        return self.vision is not None and self.vision.bidirectional != "none"

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Size buckets of the last rows of chunks whose logits come from one call: mostly of one prompt, or of few."""
        if self.block == 0:
            return (1,)
        return tuple(size for size in self.sample_sizes if size in (1, 4, self.buckets[-1]))

    @property
    def mtp_sizes(self) -> tuple[int, ...]:
        """Size buckets of the rows of the head for multi-token prediction: mostly of one sequence, or of few."""
        return tuple(size for size in self.buckets if size in (1, 4, self.buckets[-1]))

    @property
    def sample_sizes(self) -> tuple[int, ...]:
        """Size buckets of the rows that are sampled at once: as many as any step has, so that none is padded."""
        return tuple(sorted({1, *self.buckets}))

    @property
    def score_chunk(self) -> int:
        return min(SCORE_CHUNK, self.chunks[-1])
