"""Loads the draft model of a worker beside its model."""

import os
from pathlib import Path

from workers.engine.runner import Runner, RunnerCapabilities
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.errors import LoadRefused
from workers.host.memory import leaving_bytes
from workers.load_options import Progress
from workers.process.backends import choose_backend, load_runner
from workers.process.spec import WorkerSpec

RELATIVE_COST = 0.2
"""Assumed cost of a step of a draft model whose size is unknown, relative to one of its model."""


def plan_draft(spec: WorkerSpec, *, compile_only: bool = False) -> WorkerSpec | None:
    """Return the specification by which the draft model of `spec` is loaded; None if there is none. For a worker,
    before anything is loaded: raises `DraftRefused` for a draft model that cannot draft for the model, and
    `MemoryRefused` if the two models do not fit into memory, unless they are only compiled."""
    if not spec.draft_model:
        return None
    from workers.process.startup.draft_plan import DraftPlan, check_draft, draft_spec

    backend = choose_backend(spec)
    if backend == "scripted":
        return draft_spec(spec)
    from workers.checkpoints.checkpoint import ModelConfig
    from workers.process.startup.context_choice import ContextChoice

    config = ModelConfig.from_dir(Path(spec.model_path))
    check_draft(spec, backend, config)
    plan = DraftPlan.of(spec, backend, config, ContextChoice.of(spec, backend, config).context)
    if not compile_only:
        plan.check(leaving_bytes(spec.predecessor, os.getppid()), quantizable=config.quantization is None)
    return plan.spec


def load_draft(spec: WorkerSpec, progress: Progress) -> Runner:
    """Load a draft model by its own specification. Raises what `load_runner` raises, and `LoadRefused` that names the
    setting for a model that cannot be served."""
    try:
        return load_runner(spec, progress)
    except LoadRefused as error:
        raise LoadRefused(f"draft_model: {error}") from error


def drafting_by(draft: Runner, target: RunnerCapabilities) -> BatchDrafting:
    """Return what drafts by a runner. Raises `LoadRefused` where it cannot."""
    own = draft.capabilities
    if not own.decode_rows:
        raise LoadRefused(f"draft_model: on {own.device} a step takes one row a slot")
    known = own.weight_bytes and target.weight_bytes
    return BatchDrafting(DraftModel(draft), own.weight_bytes / target.weight_bytes if known else RELATIVE_COST)
