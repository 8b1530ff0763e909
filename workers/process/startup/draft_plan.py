"""The draft model of a worker: whether it fits its model, and its part of the memory, before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from workers.checkpoints.architectures.tensors import parameter_count
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights, same_text
from workers.checkpoints.documents import has_tokenizer
from workers.checkpoints.gguf.find import MMPROJ_NONE
from workers.checkpoints.weight_size import weight_bytes
from workers.errors import LoadRefused
from workers.host.memory import Needed, free_bytes
from workers.process.backends import may_verify_drafts
from workers.process.spec import WorkerSpec
from workers.process.startup.context_choice import both_row_bytes, kind_of, kv_bytes_of, ring_bytes, row_bytes
from workers.process.startup.state_sizes import all_states_bytes
from workers.process.startup.vision_size import vision_bytes


class DraftRefused(LoadRefused):
    """Raised for a `draft_model` that cannot draft for the model; the text says why."""


def check_draft(spec: WorkerSpec, backend: str, config: ModelConfig) -> None:
    """Refuse a draft model whose tokens are not those of the model, that is not smaller, or that the backend cannot
    use. Raises `DraftRefused`."""
    if not may_verify_drafts(spec, backend):
        if may_verify_drafts(replace(spec, max_batch_size=2), backend):
            raise DraftRefused(
                "draft_model: with a max_batch_size of 1 a step has one row, and drafts cannot be verified: leave it "
                "out, or set --max-batch-size to 2 or more"
            )
        raise DraftRefused(
            f"draft_model: on {spec.device or 'a GPU'} a row of several in a step may have other bits than one alone, "
            "and drafts would change answers: leave it out, or choose a CPU as the device"
        )
    path, model = Path(spec.draft_model), Path(spec.model_path)
    try:
        small = ModelConfig.from_dir(path)
    except CheckpointError as error:
        raise DraftRefused(f"draft_model: {error}") from error
    if small.state_layers:
        raise DraftRefused(
            f"draft_model: {path} has a recurrent state, from which rejected drafts cannot be taken back: give one "
            "without"
        )
    if not same_text(path, model):
        raise DraftRefused(
            f"draft_model: {path} has another tokenizer than {model}: give a smaller model of the same family"
        )
    if not has_tokenizer(path) and small.vocab_size != config.vocab_size:
        raise DraftRefused(
            f"draft_model: {path} has a vocabulary of {small.vocab_size} tokens, {model} one of {config.vocab_size}"
        )
    mine, others = parameter_count(small), parameter_count(config)
    if mine >= others:
        raise DraftRefused(f"draft_model: {path} has {mine} parameters, and {model} has {others}: give a smaller model")


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model that is loaded beside its model."""

    spec: WorkerSpec
    """That of the draft model, as if it were served by a worker of its own."""
    needed: Needed
    """The memory of both models."""

    @classmethod
    def of(cls, spec: WorkerSpec, backend: str, config: ModelConfig, context: int) -> Self:
        """Plan the draft model of a worker with this context: it has KV for as many tokens as the model itself."""
        small = ModelConfig.from_dir(Path(spec.draft_model))
        most = min(context, small.max_positions)
        rows = max(kv_bytes_of(spec, backend, config, context) // row_bytes(spec, backend, config), most)
        own = draft_spec(spec)
        weights = sum(
            weight_bytes(open_weights(Path(path), spec.quantize), kind_of(spec, each), spec.quantize)
            for path, each in ((spec.model_path, config), (spec.draft_model, small))
        )
        weights += vision_bytes(spec, kind_of(spec, config))
        states = sum(all_states_bytes(spec, backend, each) for each in (config, small))
        states += ring_bytes(spec, backend, config)
        return cls(
            replace(own, context=most, kv_bytes=rows * row_bytes(own, backend, small)),
            Needed(weights, rows * both_row_bytes(spec, backend, config), spec.max_batch_size, context, states),
        )

    def check(self, leaving: int, *, quantizable: bool) -> None:
        """Raise `MemoryRefused` if the two models do not fit into the free memory and what is `leaving`."""
        self.needed.check(free_bytes(), self.spec.quantize, quantizable=quantizable, leaving=leaving)


def draft_spec(spec: WorkerSpec) -> WorkerSpec:
    """Return the specification of a worker with the draft model alone, which computes no rows of embeddings or
    images."""
    return replace(
        spec,
        model_path=spec.draft_model,
        draft_model="",
        adapter="",
        lora_modules={},
        runtime_lora=False,
        sparse_prefill=False,
        attention=spec.sparse_prefill,
        speculate="off",
        embeddings=False,
        vision=False,
        mmproj=MMPROJ_NONE,
        window_cache="full",
        chosen_context=0,
        kv_most=0,
        faults=(),
    )
