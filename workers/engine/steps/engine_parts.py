"""Objects that the parts of an engine step share."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.images.image_encodings import ImageEncodings
from workers.engine.runner import Runner
from workers.engine.scheduler import Scheduler
from workers.engine.scheduling.token_budget import TokenBudget
from workers.engine.slot_reset import SlotResets
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.speculation.speculator import Speculator
from workers.engine.states.slot_snapshots import SlotSnapshots
from workers.engine.stats import EngineStats
from workers.engine.step_result import RunningStep
from workers.engine.tier.prefix_tier import PrefixTier
from workers.engine.transfer.row_exchange import RowExchange


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of one engine, which `BatchEngine` makes and closes."""

    runner: Runner
    scheduler: Scheduler
    resets: SlotResets
    snapshots: SlotSnapshots
    exchange: RowExchange
    step: RunningStep
    stats: EngineStats
    clock: Callable[[], float]
    budget: TokenBudget | None
    """None if the token budget of a step is fixed."""
    images: ImageEncodings | None
    """None without a vision tower."""
    tier: PrefixTier | None
    speculator: Speculator | None
    sparse: SparsePrefill | None
