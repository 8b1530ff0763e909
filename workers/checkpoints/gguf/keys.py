"""Typed access to the metadata of a model, which names the key in every error and knows which keys were read."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from workers.checkpoints.architectures.fields import MAX_NUMBER, MAX_SIZE, brief
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.json_files import CheckpointError

WITHOUT_EFFECT = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"})
"""Keys of an architecture that do not change the mathematics of text generation."""
NEUTRAL = {
    "attention.causal": True,
    "expert_weights_norm": True,
    "expert_weights_scale": 1,
    "expert_gating_func": 1,
    "rope.scaling.yarn_ext_factor": 1,
}
"""Keys of an architecture, with the value (besides 0, false, empty and -1) at which they change nothing. 1 is
softmax."""


class Keys:
    """The keys of one architecture, without its prefix."""

    def __init__(self, model: GgufFile) -> None:
        """Raises `CheckpointError` for metadata without `general.architecture`."""
        self.model = model
        architecture = model.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise model.error("general.architecture", "is missing: the file has no model")
        self.architecture: str = architecture
        self._read: set[str] = set()

    def error(self, name: str, problem: str) -> CheckpointError:
        return self.model.error(f"{self.architecture}.{name}", problem)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return self.model.metadata.get(f"{self.architecture}.{name}", default)

    def peek(self, name: str) -> Any:
        """Return a key's value without reading it: it is refused still, unless something else reads it."""
        return self.model.metadata.get(f"{self.architecture}.{name}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
            raise self.error(name, f"{brief(value)} is not an integer from 1 to {MAX_SIZE}")
        return value

    def count(self, name: str) -> int:
        """The number under a key, which may be 0 or missing."""
        return self.integer(name) if self.get(name) else 0

    def integers(self, name: str, layers: int) -> list[int]:
        """The number for each layer: a list of them, or one for all."""
        value = self.get(name)
        if not isinstance(value, list):
            return [self.integer(name)] * layers
        if len(value) != layers or any(type(each) is not int or not 0 < each <= MAX_SIZE for each in value):
            raise self.error(name, f"is not an integer from 1 to {MAX_SIZE} for each of {layers} layers")
        return value

    def same_or_none(self, name: str) -> list[int]:
        """The numbers for all layers: one number, or 0."""
        values, layers = self.get(name), self.integer("block_count")
        if (
            not isinstance(values, list)
            or len(values) != layers
            or any(type(each) is not int or not 0 <= each <= MAX_SIZE for each in values)
            or len({each for each in values if each}) > 1
        ):
            raise self.error(name, f"is not one number, or 0, for each of {layers} layers")
        return values

    def of_some(self, name: str) -> int:
        """The number of those layers that have one, of which there is one at least."""
        number = max(self.same_or_none(name))
        if not number:
            raise self.error(name, "is 0 for all layers")
        return number

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1 / MAX_NUMBER <= value <= MAX_NUMBER:
            raise self.error(name, f"{brief(value)} is not a number from {1 / MAX_NUMBER:g} to {MAX_NUMBER:g}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """The number under a key; None where it is missing or 0."""
        return self.number(name) if self.get(name) else None

    def check_total(self, name: str, total: int, most: int) -> None:
        """Raise `CheckpointError` that names a key by which a product of several is more than `most`."""
        if total > most:
            raise self.error(name, f"{self.peek(name)!r} makes {total} rows, more than {most}")

    def refuse_others(self) -> None:
        """Raise `CheckpointError` for a key that was not read and may change the mathematics."""
        for name, value in self.others(WITHOUT_EFFECT, NEUTRAL):
            raise self.error(name, f"{brief(value)} is not supported for this architecture")

    def others(self, without_effect: Collection[str], neutral: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Iterate over the keys that were not read, and their values, but for those that change nothing: the keys
        `without_effect`, and values of 0, false, empty, -1, or those of `neutral`."""
        prefix = f"{self.architecture}."
        for key, value in self.model.metadata.items():
            name = key.removeprefix(prefix)
            if name == key or name in self._read or name in without_effect:
                continue
            if (
                value in (0, False, "", -1)
                or value == neutral.get(name)
                or (isinstance(value, list) and not any(value))
            ):
                continue
            yield name, value
