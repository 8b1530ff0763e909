"""ONNX Runtime GenAI as a peer: batches on the CPU, with weights from its own model builder."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.peers.child import CHILDREN, ChildSession
from bench.peers.environment import TORCH, Environment
from bench.peers.peer import RivalModel, Session

ENVIRONMENT = Environment(
    "onnxruntime",
    (
        "onnxruntime-genai==0.18.0",
        "onnxruntime==1.32.0",
        "onnx-ir==1.1.0",
        "onnx==1.23.2",
        "transformers==5.23.0",
        TORCH,
    ),
)
OPTIONS = {"int8": (), "int4": ("shared_embeddings=true",)}
"""Options of the model builder, beside its defaults: blocks of 32, symmetric, int8 activations (accuracy level 4)."""


@dataclass(frozen=True, slots=True)
class OnnxRuntimePeer:
    """ONNX Runtime GenAI's Generator; its continuous batching is for CUDA only."""

    name: str = "ORT GenAI"
    about: str = (
        f"{', '.join(ENVIRONMENT.packages[:2])}; int8 and int4 in blocks of 32 with int8 activations, "
        "static batches, logits of the last token only"
    )

    def refusal(self, precision: str, cpu: str) -> str:
        if precision not in OPTIONS:
            return f"its CPU kernels have no {precision}"
        if cpu != "host":
            return f"it has no option that limits its instructions to {cpu}"
        return ENVIRONMENT.missing

    def install(self, cpu: str, jobs: int) -> None:
        ENVIRONMENT.install()

    def prepare(self, model: RivalModel) -> None:
        target = model.converted("onnxruntime")
        if target.exists():
            return
        half = target.with_name(f"{target.name}.{os.getpid()}")
        extra = (*OPTIONS[model.precision], "prune_lm_head=true", "hf_remote=false")
        try:
            ENVIRONMENT.run(
                *("python", "-m", "onnxruntime_genai.models.builder", "-i", str(model.path), "-o", str(half)),
                *("-p", model.precision, "-e", "cpu", "-c", str(half / "cache"), "--extra_options", *extra),
            )
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        options = {"intra_op_num_threads": model.threads}
        settings = {
            "model": str(model.converted("onnxruntime")),
            "overlay": {"model": {"decoder": {"session_options": options}}},
        }
        return ChildSession(ENVIRONMENT.python, CHILDREN / "onnxruntime_genai.py", settings, {})
