"""The settings of the model that is served."""

from typing import Literal

from pydantic import BaseModel

from cli.config.panels.backend_name import ALLOWED as ALLOWED_BACKENDS
from cli.config.panels.backend_name import BackendName
from cli.config.panels.field import MODEL, setting
from protocol.bounds import MAX_NAME, MAX_TOKENS
from workers.plugins import OWN_BACKENDS
from workers.precision import CpuTarget, KvDtype, Quantize, WindowCache


class ServedModelSettings(BaseModel):
    """The model, its backend, its precision and its context."""

    model: str = setting(
        "", MODEL, "Model directory, GGUF file or Hugging Face model id; empty selects the built-in model.", "MODEL"
    )
    name: str = setting(
        "", MODEL, "Model name that clients use; empty uses the model's own name.", "NAME", max_length=MAX_NAME
    )
    backend: BackendName = setting(
        "auto",
        MODEL,
        "iree, mlx, that of a plug-in, or auto: mlx on Apple silicon, iree elsewhere. (scripted needs no model and is "
        "for tests.)",
        "|".join(OWN_BACKENDS),
        ALLOWED_BACKENDS,
    )
    device: str = setting(
        "", MODEL, "Device of the backend, such as local-task or cuda; empty uses the backend's default.", "DEVICE"
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = setting(
        "auto", MODEL, "Number type of weights and KV cache; auto uses the best one that the device supports."
    )
    quantize: Quantize = setting(
        "none",
        MODEL,
        "Quantize the weight matrices to int8 or int4 while loading: less memory, more tokens per second.",
    )
    kv_dtype: KvDtype = setting(
        "auto",
        MODEL,
        "Type of the KV cache: that of the model (auto), or int8 or int4, which hold two or three times the tokens.",
    )
    window_cache: WindowCache = setting(
        "full",
        MODEL,
        "What layers with an attention window keep of a sequence: all rows (full), or the last ones (ring), for longer "
        "contexts in the same memory.",
    )
    cpu: CpuTarget = setting(
        "host",
        MODEL,
        "Instructions that IREE uses on a CPU: all that it has (host), or those of another one, to measure and test "
        "them or to compile for it.",
    )
    context: int = setting(
        0,
        MODEL,
        "Maximum tokens of prompt and answer together; 0 uses the model's own limit where memory allows.",
        ge=0,
        le=MAX_TOKENS,
    )
