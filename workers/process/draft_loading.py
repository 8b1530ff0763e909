"""Loads the draft model of a worker beside its model."""

import os
from functools import partial
from pathlib import Path

from workers.engine.runner import Runner, RunnerCapabilities
from workers.engine.sparse.cost import pays
from workers.engine.sparse.sparse_prefill import SparsePrefill
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


def drafter_of(draft: Runner) -> DraftModel:
    """Return what drafts by a runner. Raises `LoadRefused` where it cannot."""
    if not draft.capabilities.decode_rows:
        raise LoadRefused(f"draft_model: on {draft.capabilities.device} a step takes one row a slot")
    if draft.capabilities.state_bytes:
        raise LoadRefused(
            "draft_model: it has a recurrent state, from which rejected drafts cannot be taken back: give one without"
        )
    return DraftModel(draft)


def drafting_by(drafter: DraftModel, target: RunnerCapabilities) -> BatchDrafting:
    """Return what decides when a draft model drafts."""
    own = drafter.runner.capabilities
    known = own.weight_bytes and target.weight_bytes
    return BatchDrafting(drafter, own.weight_bytes / target.weight_bytes if known else RELATIVE_COST)


def sparse_prefill_by(spec: WorkerSpec, drafter: DraftModel) -> SparsePrefill | None:
    """Return what scores prompts by a draft model, if that is wanted. Raises `LoadRefused` where it cannot."""
    if not spec.sparse_prefill:
        return None
    if drafter.runner.attention is None:
        device = drafter.runner.capabilities.device
        raise LoadRefused(f"sparse_prefill: the attention of the draft model cannot be read on {device}: leave it out")
    if choose_backend(spec) == "scripted":
        return SparsePrefill(drafter.runner, drafter)
    from workers.checkpoints.checkpoint import ModelConfig
    from workers.process.startup.sparse_plan import prompt_cost

    draft, model = (prompt_cost(ModelConfig.from_dir(Path(path))) for path in (spec.draft_model, spec.model_path))
    return SparsePrefill(drafter.runner, drafter, partial(pays, draft, model))
