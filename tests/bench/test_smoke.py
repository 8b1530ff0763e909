"""Every script under bench/ runs with `--smoke` as people run it, and prints its table."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench.scripts import ROOT, SCRIPTS, docstring, module_of

LIMIT_S = 240
"""A first run compiles graphs, and the machine may be busy."""

N = r"\d[\d,]*(?:\.\d+)?"
"""A figure that may round to 0."""
P = rf"(?=[\d,.]*[1-9]){N}"
"""A figure above 0. What a script measures is above 0, in the digits that it prints."""
E = r"(?=[\d.]*[1-9])\d[\d.]*(?:e[+-]\d+)?"
"""A figure above 0 that may have an exponent."""
LINKS = ("baton link", "pyzmq", "pyzmq asyncio", "pyzmq reader", "pipe")
NONE = "not measured"
KINDS = ("f32", "bf16", "q8_0", "q4_0")
OUTPUT: dict[str, list[str]] = {
    "bench/actors.py": [
        rf"^local actors +{P} +{P}$",
        *(rf"^{name} +{P} +{P}( +{P}x){{3}}$" for name in LINKS),
    ],
    "bench/burst.py": [rf"^ +1 +[1-9]\d*( +{P}){{4}}$"],
    "bench/chaos.py": [rf"^1 \| 2 \| middle \| 0 \| 0 \| 0 \| [1-9] \| {P} \| {P} \| {P}$"],
    "bench/peers/cold_start.py": [
        # Its two seconds of load may pass without a token where the machine is busy.
        rf"^\| 2 +\| +{server} \| +{P} \|( +{N} \|){{5}} +\| +\| +(?:{N}x)? \| +{N}% \|$"
        for server in ("cold", "warm")
    ],
    "bench/curves.py": [
        *(rf"^\| tiny bf16, 2 at once +\| +2 \| +{rows} \| +{P} \|( +{N} \|){{4}} +{P}x \|" for rows in (64, 256)),
        *(rf"^\| tiny bf16, context 64 +\| +{rows} \| +64 \| +{P} \|( +{N} \|){{4}} +{P}x \|" for rows in (1, 2)),
        # Steps this short may take the same time at both contexts.
        rf"^tiny bf16, 2 at once: more KV is read at ({P}|inf) GB/s, memory gives {P}$",
        rf"^tiny bf16, context 64: .* grows most by {P}, to 2$",
    ],
    "bench/depth.py": [
        *(rf"^ +{depth} +{P}( +{N}){{3}} +{P} +{P}$" for depth in (256, 512, 992)),
        rf"^{P} MB of KV cache for 1024 tokens, {P} kB for each$",
        rf"^memory gives {P} and {P} GB/s$",
        *(rf"^ +{depth} +32 +{P}$" for depth in (0, 64)),
    ],
    "bench/kernels/vision.py": [
        rf"^64 patches: {P} s, longest part {P} ms, {N}% of the product alone$",
        *(rf"^ +{name} +{P} s +{N}%$" for name in ("embed", "keys", "layer", "merge")),
        rf"^a product alone does {P} and {P} billion multiply-adds a second$",
    ],
    "bench/overhead/detection.py": [
        rf"^scripted: .* {N} % of a core$",
        *(rf"^{name} +(p50 {P} +p99 {P} +max {P} *){{2}}$" for name in ("SIGKILL", "SIGABRT", "SIGSTOP")),
    ],
    "bench/engine.py": [
        *(
            rf"^\| tiny bf16 decode {n} +\|( +{P} \| {NONE} \| +\|){{2}} +{P} \| +\d+% \| +\w+ \| +\d+% \|$"
            for n in (1, 2)
        ),
        *(rf"^\| tiny bf16 prefill {n} +\| +{P} \| {NONE} \|.* {P} \| +\d+% \| +\w+ \|" for n in (128, 512)),
    ],
    "bench/evaluation/harness_scores.py": [
        r"^lm_eval is not installed: |^\d+ log-likelihoods differ from those of /v1/score by "
    ],
    "bench/overhead/prefix_tiers.py": [
        r"^tokens a second of 2 streams of 64 \+ 20 new tokens: without \d+, with \d+; ratio [\d.]+ \(",
    ],
    "bench/overhead/adapters.py": [
        *(rf"^ +{n} {name} +{P} +{P}x$" for n in (1, 2) for name in ("without", "unused", "used", "half")),
    ],
    "bench/overhead/kv_precision.py": [
        *(rf"^ +512 {kind} +{size} +{P} +{P} +{P}x +{P} +{P}x$" for kind, size in (("auto", 256), ("int8", 144))),
        rf"^int8 +{P} +{P} +{P}% +{P} +{P}$",
    ],
    "bench/overhead/preemption.py": [
        *(
            rf"^{name} +first token after +{P} ms, the last stream ends after +{P} ms$"
            for name in ("waits", "preempts")
        ),
        *(rf"^ +{rows} rows reserved +{P} tokens/s +{N} preemptions$" for rows in (1024, 512)),
    ],
    "bench/gateway_load/links.py": [
        *(rf"^{link} +{P} +{P} +{P} +{P}$" for link in ("undisturbed", "50 ms")),
        rf"^ +0\.2 +{P} +(same|moved)$",
    ],
    "bench/gateway_load/fairness.py": [
        *(rf"^ +{key} +[1-3] +{P} +{P} +{P} +{P} +{N} +{N} +{N}%$" for key in ("one", "two")),
        rf"^gateway {P} MB, and at the end {P} MB$",
        rf"^tokens of the keys differ by {N} %$",
        *(rf"^{policy}: long {P} s, short {P} s$" for policy in ("fifo", "shortest-uncached-first")),
    ],
    "bench/gateway_load/images.py": [
        *(rf"^{name} +median +{P} ms, p99 +{P} ms +{P}x$" for name in ("alone", "beside images")),
        rf"^Baton +first token after +{P} s$",
        *(rf"^{name} +{P} MB after 8 requests, [+-]\d+ bytes a request$" for name in ("gateway", "worker 0")),
    ],
    "bench/gateway_load/prefix_routing.py": [
        *(
            rf"^{load} +{routing} +{P} +{P} +{P}% +{P}% +{P} +{P} +{N} +{N} +{P} +{N}%$"
            for load in ("chats", "shared")
            for routing in ("prefix", "least-loaded")
        ),
        rf"^chats: prefix computes {P}x of least-loaded's share$",
    ],
    "bench/gateway_load/model_swap.py": [
        *(
            rf"^{name} +{P} +{P}$"
            for name in (
                "loaded",
                "in place of the other one",
                "not loaded, in the page cache",
                "not loaded, on the disk",
                "reading from the page cache",
                "reading from the disk",
            )
        ),
        *(rf"^{name} +{N} +0 +{P} +{P} +{P}$" for name in ("one model", "both in turn")),
        rf"^lost by the turns: {N} % of the tokens a second$",
    ],
    "bench/features.py": [
        r"^60 requests, [1-9]\d* workers killed, \d+ sequences interrupted, \d+ of \d+ drafted tokens accepted, "
        r"[1-9]\d* prompt tokens from the tier: 0 answers differ \(",
    ],
    "bench/gateway.py": [
        *(
            rf"^ +4 +{rate} +gateway {count}( +{P}){{7}}( +{P}x){{2}}$"
            for rate in (r"50\.0", "flat out")
            for count in (1, 2)
        ),
        r'^\{"open": 8, "errors": 0,',
    ],
    "bench/gpu_check.py": [
        *(rf"^PASS {stage}\b" for stage in ("doctor", "memory", "gate tiny float32", "engine tiny", "jax tiny")),
        rf"^\| IREE +\| +tiny \|( +{E} \|){{5}} +{P}% \|$",
        rf"^\| JAX +\| +tiny \|( +{E} \|){{2}} +\| +\| +{E} \| +{P}% \|$",
        r"^tiny: IREE and JAX agree on 8 of 8 tokens",
    ],
    "bench/kernels/attention.py": [rf"^ +{rows} +64 +{P} +{N} +{P}x$" for rows in (1, 2)],
    "bench/kernels/mixture.py": [rf"^ +tiny int8 +2 +{P} +{N} +{P}x$"],
    "bench/kernels/recurrence.py": [rf"^ +tiny {step} +{P} +{N} +{P}x$" for step in ("decode +2", "prompt +4")],
    "bench/kernels/scaling.py": [
        r"^SIMULATED, one row$",
        *(
            rf"^ *{model} +{kind} +4 +{P} \({P}\) +{N}% +{N}%( +{P}){{3}}$"
            for model in ("0.5b", "7b")
            for kind in ("int8", "int4")
        ),
    ],
    "bench/kernels/paging.py": [rf"^ +256 +{P} +{P}$"],
    "bench/load.py": [
        rf'^\{{"label": "", "streams": {n}, "requests": [1-9], "bad": 0, "why": null, "out_tok_s": {P}, "tokens": [1-9]'
        rf'\d*, "ttft_ms": \[{P}, {P}\], "itl_ms": \[{P}, {P}\], "e2e_ms": {P},'
        for n in (1, 2)
    ],
    "bench/memory.py": [
        rf"^ +96 requests, +{P} MB, {P} on the device$",
        rf"^\| 96 +\| +{P} \| +{P} \|( +{N} \|){{5}}$",
        *(rf"^\| {name} +\| +{P} \| +{P} \|" for name in ("rss", "device", "objects", "descriptors", "threads")),
        *(rf"^\| {name} +\| +0 \| +0 \| +0 \| +ok \|$" for name in ("slots", "kv_tokens")),
    ],
    "bench/overhead/mlx_runner.py": [
        rf"^{name} +{P} tok/s$" for name in ("mlx-lm", "mlx-lm 1", "mlx-lm 2", "rows 1", "rows 2")
    ],
    "bench/mutation.py": [
        r"^\| workers/engine/chunking\.py +\| +2 \|( +\d \|){4}$",
        r"^\| all +\| +2 \|( +\d \|){4}$",
        rf"^noticed {N} % of 2 mutants, seed 12, {N} min$",
    ],
    "bench/overhead/mtp.py": [rf"^right +1( +{P}){{3}} +{N} +{N}%$"],
    "bench/overhead/scheduler.py": [rf"^ +{rows} +{P} +{P} +{P}$" for rows in (1, 8, 64)],
    "bench/overhead/draft_model.py": [rf"^ +0\.90 +1( +{P}){{3}} +{N} +{N}%$"],
    "bench/overhead/needles.py": [r"^ +64 +512 +(10|50|90)% +2 +2 +2 \( 2\)$"],
    "bench/overhead/sparse_prefill.py": [rf"^ +256 +96( +{N}){{2}} +{P}$"],
    "bench/overhead/speculation.py": [
        *(
            rf"^{load} +1( +{P}){{3}} +{N} +{N}%$"
            for load in ("quote", "records", "edit", "chat", "rag", "code", "json")
        ),
        rf"^ +1 +{P}( +{P}){{6}} +{N}$",
    ],
    "bench/overhead/image_memory.py": [
        rf"^50 requests, {N} cancelled, {N} images encoded, {N} hits$",
        r"^cache of rows: [1-9]\d* bytes at most, 32768 allowed$",
    ],
    "bench/overhead/worker.py": [
        r"^4 streams x 50 tokens: 200 token events in [1-9]\d* steps$",
        rf"^whole process +{P} tokens/s +{P} messages/s$",
        rf"^engine and model +{P} tokens/s +{P} us/token$",
        rf"^  \+ text, frames +{P} tokens/s +-?{P} us/token more$",
        r"^ +ncalls +tottime",
    ],
    "bench/pace.py": [
        rf"^alone( +{P}){{3}} +- +0$",
        *(rf"^{name}( +{P}){{4}} +0$" for name in ("default budget", "512 tokens a step", "no budget")),
        rf"^next turn( +{P}){{4}} +[1-9]\d*$",
    ],
    "bench/encoders/embeddings.py": [rf"^\| Baton float32 \| {P} \| {P} \| 1\.00000 \|$"],
    "bench/peers/install.py": [
        rf"^{name}: (installed|not (built|installed)\b.*)$"
        for name in ("llama.cpp", "ik_llama.cpp", "openvino", "vllm", "onnxruntime")
    ],
    "bench/peers/mlx_vlm.py": [r"^mlx-vlm: (not )?installed$"],
    "bench/peers/llama_cpp.py": [r"^cmake: ", r"^llama-server: (not built|runs)$"],
    "bench/evaluation/vision_gguf_equality.py": [rf"^qwen2_vl +{P} +{P} bytes, llama.cpp not measured$"],
    "bench/evaluation/gguf_equality.py": [r"^qwen3 +f32 +4 of 4 +not measured$"],
    "bench/peers/weights/to_gguf.py": [rf"{kind}\.gguf: 20 tensors, {kind}, {P} MB$" for kind in KINDS],
    "bench/peers/rivals.py": [
        rf"^\| tiny bf16, decode 2 +\| +{P} \|$",
        rf"^\| tiny bf16, prefill 128 +\| +{P} \|$",
        rf"^\| tiny bf16, context 64 +\| +{P} \|$",
        *(
            rf"^\| tiny bf16, {caches} caches, {what} 2 +\| +{P} \|$"
            for caches in ("empty", "filled")
            for what in ("s to the first token, then streams", "tokens/s of streams")
        ),
    ],
    "bench/scale_out/gateway_loss.py": [
        r"^redis(-server)? is not installed"
        rf"|^10 streams: 0 lost, 0 altered, 0 doubled; 8 moved after {P} tokens, gap p50 {P} s, p99 {P} s, .* {N} s$"
    ],
    "bench/scale_out/kv_transfer.py": [
        rf"^{how} +100 +{N} / {N} +{N} / {N} +{P} +{N} +[0-9]+$" for how in ("with rows", "recomputed")
    ],
    "bench/scale_out/prefill_workers.py": [
        rf"^prefill worker +1( +(?:{N}|-)( / (?:{N}|-)){{2}}){{2}} +{P} +{N} / {N} +[0-9]+$"
    ],
    "bench/scale_out/ray_node_loss.py": [
        rf"^ray is not installed: |^4 streams: 0 lost, 0 altered; [1-4] moved, .* fleet whole after {P} s$"
    ],
    "bench/scale.py": [
        rf"^\| {workers} +\|( +{P} \|){{6}} +0.0 \|( +{N} \|){{3}} +{N} % \|$"
        for workers in ("1", "16", "1, 8 MiB read")
    ]
    + [
        rf"^\| 1 +\|( +{P} \|){{5}} +{N} % \|$",
        rf"^\| 16 +\| +{P} \| +{P} \|( +{N} \|){{2}} +{P} \| +{P} \| +0 \| +0 \|$",
        rf"^memory: {P} KB for each worker, {P} KB for each live stream; the process grew by {N} MB with 16 idle",
        *(rf"^\| 2 +\| +{each} \| +{P} \| +{N} % \|( +{P} \|){{2}} +{N} % \|$" for each in ("8", "16, shared")),
        rf"^\| 2 +\| +16, shared \|( +{P} \|){{3}} +0 \| +0 \|$",
        r"^every fault and an upgrade, seed 0: .* intact$",
        rf"^one core is full at {P} workers .* by routing alone, at {P} with all the rest$",
    ],
    "bench/serving.py": [rf"^tiny bfloat16, 2 streams: engine alone {P} tok/s, through HTTP {P} tok/s, ratio {P}$"],
    "bench/soak.py": [
        r"^\| answered +\| +[1-9]",
        *(rf"^\| {name} +\| +0 \|" for name in ("altered", "duplicated", "lost", "hung", "violated")),
        r"^\| problems of the server \| +0 \|",
        *(rf"^\| {name} +\| +[1-9]\d* \|( +{P} \|){{3}}$" for name in ("lost a worker", "did not")),
        rf"^\| undisturbed, one at a time \|( +\|){{3}} +{P} \|$",
        *(rf"^\| {name} +\| +[1-9]\d* \|" for name in ("kill", "stop")),
        r"^\| workers were started again because +\|",
        r"^\| its process was killed by SIGKILL +\| +[1-9]\d* \|$",
        r"^\| attack +\| answered \| closed \| held \|$",
        rf"^\| slowest answer to a probe +\| +{P} \|",
        rf"^\| longest turn of the event loop, CPU time \| +{P} \|",
    ],
    "bench/structured/chat_templates.py": [
        r"^chat_template +hermes +- +object +yes +yes$",
        r"^    '.*get_weather.*Berlin",
    ],
    "bench/structured/neighbours.py": [
        rf"^none: ms between tokens p50 {P} p99 {P}, [1-9]\d* tokens; 0 requests beside$",
        r"^large: .*; [1-9]\d* requests beside, .*; ratio to cached p50 ",
        r"^runaway: .*; [1-9]\d* requests beside, .*; ratio to none p50 ",
    ],
    "bench/structured/output.py": [
        r"^schemas 3, refused 1$",
        r"^  refused 1: Unimplemented keys, uniqueItems$",
        r"^valid instances accepted 4 of 4$",
        r"^invalid instances rejected 5 of 5$",
        rf"^us a mask: avg {P} p50 {P} p99 {P} p99\.9 {P} max {P}, [1-9]\d* masks$",
        rf"^ms to the first mask, with the check process: avg {P} ",
        rf"^ms of processor time to the first mask, llguidance alone: avg {P} ",
        rf"^first mask, ratio to llguidance alone: wall p50 {P} p99 {P}, processor time p50 {P} p99 {P}$",
        rf"^decode, 1 streams with a grammar beside 1 without: {P}x of none$",
        rf"^us a step, alone: avg {P} ",
        rf"^us a step, while schemas are compiled: avg {P} ",
        rf"^ms to compile one: avg {P} .* [1-9]\d* compiled$",
    ],
}
"""Lines that each script must print."""
OPTIONS = {"bench/chaos.py": ("--plot", "plot.svg", "--json", "figures.json")}
"""Options besides `--smoke`, with files in the folder of results."""
FILES = {
    "bench/chaos.py": ["figures.json", "plot.svg"],
    "bench/curves.py": ["table.md", "figures.json", "plot.svg"],
    "bench/engine.py": ["table.md", "figures.json", "plot.svg"],
    "bench/memory.py": ["table.md", "figures.json", "plot.svg"],
    "bench/peers/rivals.py": ["table.md", "figures.json", "plot.svg"],
    "bench/soak.py": ["table.md", "samples.json", "plot.svg"],
}
"""Files that each script writes into its folder of results."""


FURTHER = {
    "bench/chaos.py",
    "bench/kernels/mixture.py",
    "bench/kernels/recurrence.py",
    "bench/kernels/vision.py",
    "bench/features.py",
    "bench/gateway_load/fairness.py",
    "bench/gateway_load/images.py",
    "bench/gateway_load/model_swap.py",
    "bench/gateway_load/prefix_routing.py",
    "bench/gpu_check.py",
    "bench/gateway.py",
    "bench/mutation.py",
    "bench/overhead/adapters.py",
    "bench/overhead/draft_model.py",
    "bench/overhead/mlx_runner.py",
    "bench/overhead/prefix_tiers.py",
    "bench/evaluation/gguf_equality.py",
    "bench/evaluation/vision_gguf_equality.py",
    "bench/overhead/kv_precision.py",
    "bench/overhead/mtp.py",
    "bench/overhead/needles.py",
    "bench/overhead/sparse_prefill.py",
    "bench/overhead/speculation.py",
    "bench/peers/cold_start.py",
    "bench/peers/rivals.py",
    "bench/scale_out/gateway_loss.py",
    "bench/scale_out/kv_transfer.py",
    "bench/scale_out/prefill_workers.py",
    "bench/scale.py",
    "bench/soak.py",
    "bench/structured/neighbours.py",
}
"""Scripts that take more than eight seconds: the whole suite runs them where it includes the tests with the marker
`exhaustive`. Parts of many have tests of their own, in the folders beside this file."""


def run(command: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the repository; at its limit it is killed with all processes of its group."""
    environment = {**os.environ, "BATON_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        pytest.fail(f"{command} did not end within {LIMIT_S} s:\n{out}\n{errors}")
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


@pytest.fixture(scope="session")
def smoke_cache(cache_dir: Path) -> Path:
    """Graphs and models, kept from run to run like those of other tests."""
    return cache_dir / "graphs" / "bench"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    "script", [pytest.param(each, marks=[pytest.mark.exhaustive] if each in FURTHER else ()) for each in SCRIPTS]
)
def test_a_script_runs_with_smoke(script: str, smoke_cache: Path) -> None:
    module_of(script)
    if "Needs Linux" in docstring(SCRIPTS[script]) and sys.platform != "linux":
        pytest.skip("needs Linux")
    results = smoke_cache / "bench" / "smoke" / Path(script).stem
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    more = [word if word.startswith("-") else str(results / word) for word in OPTIONS.get(script, ())]
    done = run([sys.executable, script, "--smoke", *more], smoke_cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert script in OUTPUT, "add the lines that it prints"
    for line in OUTPUT[script]:
        assert re.search(line, done.stdout, re.MULTILINE), f"no line like {line} in:\n{done.stdout}"
    for name in FILES.get(script, []):
        if name == "plot.svg" and find_spec("matplotlib") is None:
            assert "plot.svg is left out" in done.stderr
        else:
            assert (results / name).stat().st_size


def test_no_script_is_listed_that_does_not_exist() -> None:
    assert SCRIPTS.keys() >= OUTPUT.keys() >= FILES.keys() >= OPTIONS.keys()
    assert SCRIPTS.keys() >= FURTHER


@pytest.mark.parametrize("figure", ["0", "0.0", "0,000.00", "", ".", "None", "nan", "inf"])
def test_what_is_not_above_0_is_no_measurement(figure: str) -> None:
    assert not re.fullmatch(P, figure)
    assert not re.fullmatch(E, figure)


@pytest.mark.parametrize("figure", ["1", "0.01", "10", "1,024.5", "3.2"])
def test_a_figure_above_0_is_a_measurement(figure: str) -> None:
    assert re.fullmatch(P, figure)


@pytest.mark.exhaustive
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_child_that_refuses_what_its_script_gives_it_is_found(tmp_path: Path, smoke_cache: Path) -> None:
    """The servers of bench/gateway.py once refused the rate 0, with which they run flat out."""
    for each in ROOT.iterdir():
        if each.name == "bench":
            shutil.copytree(each, tmp_path / "bench", ignore=shutil.ignore_patterns("results", "__pycache__"))
        elif not each.name.startswith("."):
            (tmp_path / each.name).symlink_to(each)
    servers = tmp_path / "bench" / "gateway_load" / "servers.py"
    text = servers.read_text()
    assert text.count("rate: Annotated[float, Meta(ge=0.0)]") == 1
    servers.write_text(text.replace("rate: Annotated[float, Meta(ge=0.0)]", "rate: Annotated[float, Meta(gt=0.0)]"))
    done = run([sys.executable, str(tmp_path / "bench" / "gateway.py"), "--smoke"], smoke_cache)
    assert done.returncode == 1
    assert "Expected `float` > 0.0 - at `$.rate`" in done.stderr
    assert "the server ended with status 1 before it served" in done.stderr
