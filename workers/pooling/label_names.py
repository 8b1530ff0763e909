"""The labels of a sequence classifier: their names, and the function by which their logits become probabilities."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocol.bounds import MAX_LABELS, MAX_NAME
from workers.checkpoints.architectures.fields import brief
from workers.checkpoints.documents import read_fields

Function = Literal["sigmoid", "softmax", "identity"]
FUNCTIONS: dict[str, Function] = {
    "multi_label_classification": "sigmoid",
    "regression": "identity",
    "single_label_classification": "softmax",
}
"""By the `problem_type` of transformers' configurations."""


@dataclass(frozen=True, slots=True)
class LabelNames:
    """The labels as config.json states them."""

    names: tuple[str, ...] = ()
    """Empty for more than `MAX_LABELS`."""
    function: Function = "softmax"

    @classmethod
    def of(cls, path: Path, labels: int) -> "LabelNames":
        """Read those of a checkpoint with so many labels, as transformers and vLLM do: without a `problem_type`,
        several labels exclude each other. Raises `CheckpointError` for an unknown one."""
        fields = read_fields(path)
        kind = fields.get("problem_type")
        if kind is not None and not (isinstance(kind, str) and kind in FUNCTIONS):
            raise fields.error("problem_type", f"{brief(kind)} is not supported, only {', '.join(FUNCTIONS)}")
        function = FUNCTIONS.get(str(kind), "softmax")
        if labels == 1 and function == "softmax":
            function = "sigmoid"
        if labels > MAX_LABELS:
            return cls(function=function)
        stated = fields.get("id2label")
        known = stated if isinstance(stated, dict) else {}
        names = (known.get(str(index)) for index in range(labels))
        default = (f"LABEL_{index}" for index in range(labels))
        return cls(tuple(_name(name, other) for name, other in zip(names, default, strict=True)), function)


def _name(given: object, default: str) -> str:
    return default if given is None else str(given)[:MAX_NAME]
