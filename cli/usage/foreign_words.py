"""Flags and commands of vLLM, SGLang, llama.cpp and Ollama that Baton has under another name, or has no need of."""

from collections.abc import Container

MODEL = "the argument MODEL"

FLAGS: dict[str, tuple[str, ...]] = {
    "--alias": ("--name",),
    "--allowed-origins": ("--cors-origin",),
    "--api-server-count": ("--gateways",),
    "--batch-size": ("--step-tokens",),
    "--cache-type-k": ("--kv-dtype",),
    "--cache-type-v": ("--kv-dtype",),
    "--chunked-prefill-size": ("--step-tokens",),
    "--context-length": ("--context",),
    "--ctx-size": ("--context",),
    "--data-parallel-size": ("--workers",),
    "--dp-size": ("--workers",),
    "--enable-lora": ("--lora-modules",),
    "--format": ("--json-schema",),
    "--gpu-memory-utilization": ("--kv-bytes",),
    "--hf-repo": (MODEL,),
    "--hidethinking": ("--reasoning",),
    "--host": ("--url",),
    "--kv-cache-dtype": ("--kv-dtype",),
    "--lora": ("--lora-modules",),
    "--lora-paths": ("--lora-modules",),
    "--max-model-len": ("--context",),
    "--max-num-batched-tokens": ("--step-tokens",),
    "--max-num-seqs": ("--max-batch-size",),
    "--max-running-requests": ("--max-batch-size",),
    "--mem-fraction-static": ("--kv-bytes",),
    "--model": (MODEL,),
    "--model-draft": ("--draft-model",),
    "--model-path": (MODEL,),
    "--n-predict": ("--max-tokens",),
    "--parallel": ("--max-batch-size",),
    "--port": ("--url",),
    "--quantization": ("--quantize",),
    "--repeat-penalty": ("--repetition-penalty",),
    "--served-model-name": ("--name",),
    "--spec-draft-model": ("--draft-model",),
    "--speculative-config": ("--draft-model", "--speculate"),
    "--speculative-draft-model-path": ("--draft-model",),
    "--speculative-model": ("--draft-model",),
    "--ssl-cert-file": ("--tls-cert",),
    "--ssl-certfile": ("--tls-cert",),
    "--ssl-key-file": ("--tls-key",),
    "--ssl-keyfile": ("--tls-key",),
    "--temp": ("--temperature",),
    "--think": ("--reasoning",),
    "--threads-http": ("--gateways",),
    "--tokenizer-worker-num": ("--gateways",),
    "--tool-call-parser": ("--tool-parser",),
    "--ubatch-size": ("--step-tokens",),
    "--uds": ("--unix-socket",),
    "--uvicorn-log-level": ("--log-level",),
    "--verbose": ("--stats", "--log-level"),
    "-a": ("--name",),
    "-b": ("--step-tokens",),
    "-c": ("--context",),
    "-ctk": ("--kv-dtype",),
    "-ctv": ("--kv-dtype",),
    "-dp": ("--workers",),
    "-hf": (MODEL,),
    "-m": (MODEL,),
    "-md": ("--draft-model",),
    "-np": ("--max-batch-size",),
    "-q": ("--quantize",),
    "-t": ("--threads",),
    "-v": ("--log-level",),
}
"""The flags that do here what a flag of another server does there. A command may have only some of them."""

_BY_REQUEST = "each request chooses its own"
_BY_CHECKPOINT = "leave it out: the files of the checkpoint decide it"
_ON = "leave it out: it is always on"
_DEVICE = "leave it out: all layers are on the one device that --device chooses"
_ONE_DEVICE = "a model is not split over devices; --workers adds processes with the whole model"
_NO_NEED = "leave it out: there is no such thing here"

REASONS: dict[str, str] = {
    "--chat-template": "the template is chat_template.jinja in the model's directory, or in tokenizer_config.json",
    "--cont-batching": _ON,
    "--disable-log-requests": "leave it out: prompts are never logged; --log-level warning leaves out requests",
    "--download-dir": "the variable HF_HOME names the directory of downloads",
    "--embedding": _BY_CHECKPOINT,
    "--embeddings": _BY_CHECKPOINT,
    "--enable-auto-tool-choice": _ON,
    "--enable-chunked-prefill": _ON,
    "--enable-prefix-caching": "leave it out: it is on unless --no-prefix-cache is given",
    "--enforce-eager": _NO_NEED,
    "--flash-attn": _ON,
    "--gpu-layers": _DEVICE,
    "--jinja": _ON,
    "--metrics": "leave it out: /metrics is always there",
    "--n-gpu-layers": _DEVICE,
    "--no-enable-prefix-caching": "use --no-prefix-cache",
    "--pipeline-parallel-size": _ONE_DEVICE,
    "--reasoning-budget": _BY_REQUEST,
    "--reranking": _BY_CHECKPOINT,
    "--revision": "name it in MODEL: ORG/NAME@REVISION",
    "--runner": _BY_CHECKPOINT,
    "--seed": _BY_REQUEST,
    "--slots": "leave it out: /admin/workers and `baton top` show the slots",
    "--swap-space": _NO_NEED,
    "--task": _BY_CHECKPOINT,
    "--tensor-parallel-size": _ONE_DEVICE,
    "--tokenizer": _BY_CHECKPOINT,
    "--tp-size": _ONE_DEVICE,
    "--trust-remote-code": "leave it out: code of a checkpoint is never run",
    "-cb": _ON,
    "-fa": _ON,
    "-ngl": _DEVICE,
    "-pp": _ONE_DEVICE,
    "-tp": _ONE_DEVICE,
}
"""Advice about flags that have no counterpart, for the commands that serve."""

COMMANDS: dict[str, str] = {
    "complete": "`baton generate`",
    "cp": "`name` and `aliases` of [[models]] in baton.toml",
    "create": "`baton serve` with flags or baton.toml, as there are no Modelfiles",
    "delete": "`baton rm`",
    "download": "`baton pull`",
    "help": "`baton --help`",
    "launch": "`baton serve`",
    "load": "`baton admin load`",
    "ls": "`baton list`",
    "models": "`baton list`, or `baton ps` for those of a running server",
    "remove": "`baton rm`",
    "show": "`baton inspect`",
    "start": "`baton serve`",
    "status": "`baton ps`",
    "stop": "`baton admin unload` for a model, or Ctrl-C for the server",
    "unload": "`baton admin unload`",
    "version": "`baton --version`",
}
"""The counterparts of commands of other programs."""


def flag_hint(words: list[str], unknown: str, known: Container[str], *, serves: bool) -> tuple[str, str] | None:
    """Return the flag among `words` that the parser did not know, and what to do in its place; None if nothing is known
    of it.

    `unknown` is the flag as the parser reports it, which is `-n` for `-ngl`. `known` are the flags of the command, and
    `MODEL` if it has that argument. `serves`: the command starts workers.
    """
    for word in words:
        flag = word.partition("=")[0]
        if flag != unknown and (unknown.startswith("--") or flag.startswith("--") or flag[1:2] != unknown[1:]):
            continue
        if found := [each for each in FLAGS.get(flag, ()) if each in known]:
            return flag, f"use {' or '.join(found)}"
        if serves and (reason := REASONS.get(flag)):
            return flag, reason
    return None
