"""Maps the tensors of a checkpoint to those of the model, by the headers of its files."""

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from workers.checkpoints.architectures.tensors import tensors, unread_reason
from workers.checkpoints.architectures.wrapper import name_inside, unwrap
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights, stacks_of
from workers.checkpoints.documents import read_fields
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.tensors import encoder_tensors, is_head, prefix_of
from workers.checkpoints.expert_stacks import MAX_EXPERTS, StackLayout, is_stack, unstacked
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.gguf.rotary import FACTORS
from workers.checkpoints.lone_config import LoneConfig
from workers.checkpoints.weight_files import WeightFiles
from workers.checkpoints.weights import FLOATS, Weights

Use = Literal["read", "ignored", "refused", "missing"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the files, and what becomes of it."""

    name: str
    dtype: str
    """The type as the file names it; empty for a tensor that is missing."""
    shape: tuple[int, ...]
    use: Use
    to: tuple[str, ...] = ()
    """Our tensors that it is read into, a layer's behind its number: `3.qkv`."""
    why: str = ""
    """Why it is ignored, refused or needed."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """All tensors of a checkpoint, in the order of its files, and those that it should have."""

    tensors: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, path: Path, config: ModelConfig | LoneConfig | EncoderConfig | None, problem: str = "") -> "TensorMap":
        """Map the tensors of a checkpoint with this description; without one all are refused for `problem`. Raises
        `CheckpointError` for files that cannot be read."""
        stored = list(_stored(path))
        if config is None:
            return cls(tuple(StoredTensor(*each, "refused", why=problem) for each in stored))
        if isinstance(config, EncoderConfig):
            return cls(tuple(_of_encoder(stored, config)))
        if isinstance(config, LoneConfig):
            return cls(tuple(StoredTensor(*each, "read", ("mlx-lm",)) for each in stored))
        try:
            weights = open_weights(path)
        except CheckpointError as error:
            return cls(tuple(_with_unread(each, error) for each in stored))
        places = _Places.of(path, weights, config, [name for name, _, _ in stored])
        return cls((*(places.of_stored(each) for each in stored), *places.missing()))

    def counts(self) -> dict[str, int]:
        """Return the number of tensors by their use."""
        return dict(Counter(each.use for each in self.tensors))

    def problem(self) -> StoredTensor | None:
        """Return the first tensor for which the checkpoint is refused."""
        return next((each for each in self.tensors if each.use in ("refused", "missing")), None)

    def groups(self) -> list[tuple[str, str, int]]:
        """Return (our tensors without the numbers of layers, type, number of tensors) of those that are read."""
        counts: Counter[tuple[str, str]] = Counter()
        for each in self.tensors:
            if each.use == "read":
                ours = dict.fromkeys(name.rpartition(".")[2] for name in each.to)
                counts[", ".join(ours), each.dtype] += 1
        return [(*group, count) for group, count in counts.items()]


def _stored(path: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """List (name, type, shape) of the tensors as the files name them."""
    file = gguf_path(path)
    if file is not None:
        for tensor in GgufFile.open(file).tensors.values():
            yield tensor.name, tensor.type.name, tensor.shape
        return
    files = WeightFiles(path)
    for name, shard in files.locate().items():
        try:
            part = files.open(shard).get_slice(name)
            yield name, part.get_dtype(), tuple(part.get_shape())
        except SafetensorError as error:
            raise CheckpointError(shard, name, str(error)) from error


def _of_encoder(stored: Sequence[tuple[str, str, tuple[int, ...]]], config: EncoderConfig) -> Iterator[StoredTensor]:
    """Map the tensors of an encoder, as `check_encoder_tensors` and the loaders do."""
    names = {name: shape for name, _, shape in stored}
    prefix = prefix_of(config, names)
    wanted = [(tensor.name, *source) for tensor in encoder_tensors(config, prefix) for source in tensor.sources]
    ours = {source: (name, shape) for name, source, shape in wanted}
    for name, dtype, shape in stored:
        if name in ours:
            to, expected = ours[name]
            why = "" if dtype in FLOATS else f"type {dtype} is not supported, only {' or '.join(sorted(FLOATS))}"
            why = why if shape == expected else f"has the shape {shape}, config.json says {expected}"
            yield StoredTensor(name, dtype, shape, "refused" if why else "read", (to,), why)
        elif is_head(name, prefix):
            yield StoredTensor(name, dtype, shape, "ignored", why="hidden states do not depend on it")
        else:
            why = f"the tensor is not part of a {config.family} model as config.json has it"
            yield StoredTensor(name, dtype, shape, "refused", why=why)
    for name, source, shape in wanted:
        if source not in names:
            yield StoredTensor(source, "", shape, "missing", (name,), "the tensor is missing")


def _with_unread(stored: tuple[str, str, tuple[int, ...]], error: CheckpointError) -> StoredTensor:
    """A tensor of a checkpoint whose names cannot be read: one of them, or what describes them, is refused."""
    if error.field in ("", stored[0]):
        return StoredTensor(*stored, "refused", why=error.problem)
    return StoredTensor(*stored, "ignored", why=f"not mapped, because {error.field} is refused: {error.problem}")


def _held(name: str, sources: Container[str], *, quantized: bool, stacks: StackLayout = "halves") -> tuple[str, ...]:
    """Return the matrices of the model of which a stored tensor holds a part: of a quantized one its integers or
    scales, of stacked experts all matrices."""
    if name in sources:
        return (name,)
    module, _, part = name.rpartition(".")
    whole = f"{module}.weight" if quantized and not is_stack(name, stacks) and part not in ("weight", "bias") else name
    stack = []
    for single, _place in unstacked(whole, MAX_EXPERTS, stacks) if is_stack(whole, stacks) else ():
        if single not in sources:
            break
        stack.append(single)
    return tuple(stack) or (whole,)


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the tensors of a checkpoint in the model."""

    config: ModelConfig
    weights: Weights
    held: Mapping[str, tuple[str, ...]]
    """Hugging Face's names of what each stored tensor holds, in the language model; none for one of another part."""
    ours: Mapping[str, Mapping[str, tuple[int, ...]]]
    """Our tensors by Hugging Face's name of their source, each with the shape of the source."""

    @classmethod
    def of(cls, path: Path, weights: Weights, config: ModelConfig, stored: Sequence[str]) -> "_Places":
        ours: dict[str, dict[str, tuple[int, ...]]] = {}
        for tensor in tensors(config):
            for source, shape in tensor.sources:
                ours.setdefault(source, {})[tensor.name] = shape
        held: dict[str, tuple[str, ...]] = {}
        if isinstance(weights, GgufWeights):
            for name, place in weights.locations():
                held[place] = (*held.get(place, ()), name)
            return cls(config, weights, held, ours)
        fields, wrapper = unwrap(read_fields(path))
        stacks = stacks_of(path, fields, wrapper)
        for each in stored:
            inside = each if wrapper is None else name_inside(each, wrapper.inside)
            if inside is not None:
                held[each] = _held(inside, ours, quantized=config.quantization is not None, stacks=stacks)
        return cls(config, weights, held, ours)

    def of_stored(self, stored: tuple[str, str, tuple[int, ...]]) -> StoredTensor:
        """Decide what becomes of a stored tensor, as `check_tensors` and the loaders do."""
        held = self.held.get(stored[0], ())
        to = tuple(dict.fromkeys(tensor for each in held for tensor in self.ours.get(each, {})))
        if to:
            why = self._problem(held[0], stored[1])
            return StoredTensor(*stored, "refused" if why else "read", to, why)
        if why := self._unread(stored[0], held):
            return StoredTensor(*stored, "ignored", why=why)
        why = f"the tensor is not part of a {self.config.family} model as config.json has it"
        return StoredTensor(*stored, "refused", why=why)

    def missing(self) -> Iterator[StoredTensor]:
        """List the tensors that the model has and the checkpoint lacks."""
        for source, ours in self.ours.items():
            if source not in self.weights:
                shape = next(iter(ours.values()))
                yield StoredTensor(source, "", shape, "missing", tuple(ours), "the tensor is missing")

    def _unread(self, stored: str, held: tuple[str, ...]) -> str:
        if stored in FACTORS:
            return "read with the description of the model"
        if not held:
            return "a part of a multimodal model that text does not reach"
        return unread_reason(held[0], self.config) or ("a bias of zeros" if self.weights.adds_nothing(held[0]) else "")

    def _problem(self, name: str, dtype: str) -> str:
        """Return why a tensor cannot be read; empty if it can."""
        if isinstance(self.weights, GgufWeights) or self.weights.format(name) is not None:
            return ""  # checked when the files were opened
        if dtype not in FLOATS:
            return f"type {dtype} is not supported, only {' or '.join(sorted(FLOATS))}"
        expected, shape = next(iter(self.ours[name].values())), self.weights.shape(name)
        if math.prod(expected) != math.prod(shape):
            return f"has the shape {shape}, config.json says {expected}"
        return ""
