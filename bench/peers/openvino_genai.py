"""OpenVINO GenAI as a peer: its continuous batching on the CPU, with weights that optimum-intel exports."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.peers.child import CHILDREN, ChildSession
from bench.peers.environment import TORCH, Environment
from bench.peers.peer import RivalModel, Session

ENVIRONMENT = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "optimum-intel==2.2.0", "nncf==3.4.0", TORCH),
    ("torchvision",),  # does not load beside another build of PyTorch, and is not needed
)
EXPORT = {
    "bf16": (),
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0", "--all-layers"),
}
"""Options of `optimum-cli export openvino`: as Intel publishes int4 models, but with the head in int4 as well."""


@dataclass(frozen=True, slots=True)
class OpenVinoPeer:
    """OpenVINO GenAI's ContinuousBatchingPipeline."""

    name: str = "OpenVINO"
    about: str = (
        f"{', '.join(ENVIRONMENT.packages[:4])}; bf16 inference precision, int8 KV cache (its default), "
        "dynamic split-fuse of 2048 tokens, pinned threads; int8 per channel, int4 symmetric in groups of 128"
    )

    def refusal(self, precision: str, cpu: str) -> str:
        if precision not in EXPORT:
            return f"{precision} is not exported"
        return ENVIRONMENT.missing or ("" if cpu in ("host", "avx2") else f"oneDNN cannot be limited to {cpu}")

    def install(self, cpu: str, jobs: int) -> None:
        ENVIRONMENT.install()

    def prepare(self, model: RivalModel) -> None:
        target = model.converted("openvino")
        if target.exists():
            return
        half = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            task = ("--task", "text-generation-with-past")
            ENVIRONMENT.run(
                *("optimum-cli", "export", "openvino", "-m", str(model.path), *task),
                *(*EXPORT[model.precision], str(half)),
            )
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        settings = {
            "model": str(model.converted("openvino")),
            "scheduler": {
                "cache_size": model.kv_gigabytes,
                "max_num_seqs": model.slots,
                "max_num_batched_tokens": 2048,
                "dynamic_split_fuse": True,
                "enable_prefix_caching": False,
            },
            "properties": {
                "INFERENCE_PRECISION_HINT": "bf16" if model.cpu == "host" else "f32",
                "INFERENCE_NUM_THREADS": model.threads,
                "ENABLE_CPU_PINNING": True,
                "CACHE_DIR": str(caches or model.folder / "peers" / "openvino-cache"),
            },
        }
        limit = {} if model.cpu == "host" else {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        return ChildSession(ENVIRONMENT.python, CHILDREN / "openvino_genai.py", settings, limit)
