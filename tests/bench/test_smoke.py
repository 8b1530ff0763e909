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

N = r"[\d.,]+"
"""A figure."""
LINKS = ("baton link", "pyzmq", "pyzmq asyncio", "pyzmq reader", "pipe")
NONE = "not measured"
KINDS = ("f32", "bf16", "q8_0", "q4_0")
OUTPUT: dict[str, list[str]] = {
    "bench/actors.py": [
        rf"^local actors +{N} +{N}$",
        *(rf"^{name} +{N} +{N}( +{N}x){{3}}$" for name in LINKS),
    ],
    "bench/burst.py": [rf"^ +1 +\d+( +{N}){{4}}$"],
    "bench/chaos.py": [rf"^1\+1 \| 2 \| middle \| 0 \| 0 \| 0 \| \d \| ({N}|None) \| ({N}|None) \| {N}$"],
    "bench/curves.py": [
        *(rf"^\| tiny bf16, 2 at once +\| +2 \| +{rows} \|( +{N} \|){{5}} +{N}x \|" for rows in (64, 256)),
        *(rf"^\| tiny bf16, context 64 +\| +{rows} \| +64 \|( +{N} \|){{5}} +{N}x \|" for rows in (1, 2)),
        rf"^tiny bf16, 2 at once: more KV is read at ({N}|inf) GB/s, memory gives {N}$",
        rf"^tiny bf16, context 64: .* grows most by {N}, to 2$",
    ],
    "bench/depth.py": [
        *(rf"^ +{depth}( +{N}){{6}}$" for depth in (256, 512, 992)),
        rf"^memory gives {N} and {N} GB/s$",
        *(rf"^ +{depth} +32 +{N}$" for depth in (0, 64)),
    ],
    "bench/detection.py": [
        rf"^scripted: .* {N} % of a core$",
        *(rf"^{name} +(p50 {N} +p99 {N} +max {N} *){{2}}$" for name in ("SIGKILL", "SIGABRT", "SIGSTOP")),
    ],
    "bench/engine.py": [
        *(
            rf"^\| tiny bf16 decode {n} +\|( +{N} \| {NONE} \| +\|){{2}} +{N} \| +\d+% \| +\w+ \| +\d+% \|$"
            for n in (1, 2)
        ),
        *(rf"^\| tiny bf16 prefill {n} +\| +{N} \| {NONE} \|.* {N} \| +\d+% \| +\w+ \|" for n in (128, 512)),
    ],
    "bench/gateway.py": [
        *(rf"^ +4 +{rate}( +{N}){{6}}( +{N}x){{2}}$" for rate in (r"50\.0", "flat out")),
        r'^\{"open": 8, "errors": 0,',
    ],
    "bench/gpu_check.py": [
        *(rf"^PASS {stage}\b" for stage in ("doctor", "memory", "gate tiny float32", "engine tiny", "jax tiny")),
        rf"^\| IREE +\| +tiny \|( +[\de+.]+ \|){{5}} +{N}% \|$",
        rf"^\| JAX +\| +tiny \|( +[\de+.]+ \|){{2}} +\| +\| +[\de+.]+ \| +{N}% \|$",
        r"^tiny: IREE and JAX agree on 8 of 8 tokens",
    ],
    "bench/kernels/attention.py": [rf"^ +{rows} +64 +{N} +{N} +{N}x$" for rows in (1, 2)],
    "bench/kernels/paging.py": [rf"^ +256 +{N} +{N}$"],
    "bench/load.py": [
        rf'^\{{"label": "", "streams": {n}, "requests": \d, "bad": 0, "why": null, "out_tok_s": {N},' for n in (1, 2)
    ],
    "bench/memory.py": [
        rf"^ +96 requests, +{N} MB, {N} on the device$",
        rf"^\| 96 +\|( +{N} \|){{7}}$",
        *(rf"^\| {name} +\| +0 \| +0 \| +0 \| +ok \|$" for name in ("slots", "kv_tokens")),
    ],
    "bench/mlx_runner.py": [rf"^{name} +{N} tok/s$" for name in ("mlx-lm", "rows 1", "rows 2")],
    "bench/overhead/scheduler.py": [rf"^ +{rows} +{N} +{N} +{N}$" for rows in (1, 8, 64)],
    "bench/overhead/worker.py": [
        r"^4 streams x 50 tokens: 200 token events in \d+ steps$",
        rf"^whole process +{N} tokens/s +{N} messages/s$",
        rf"^engine and model +{N} tokens/s +{N} us/token$",
        rf"^  \+ text, frames +{N} tokens/s +-?{N} us/token more$",
        r"^ +ncalls +tottime",
    ],
    "bench/pace.py": [
        rf"^alone( +{N}){{3}} +- +0$",
        *(rf"^{name} +({N} +{N} +{N} +{N} +\d+|fewer than two tokens.*)$" for name in ("default budget", "next turn")),
        *(rf"^{name} +({N} +{N} +{N} +{N} +\d+|fewer .*)$" for name in ("512 tokens a step", "no budget")),
    ],
    "bench/peers/llama_cpp.py": [r"^cmake: ", r"^llama-server: (not built|runs)$"],
    "bench/peers/to_gguf.py": [rf"{kind}\.gguf: 20 tensors, {kind}, {N} MB$" for kind in KINDS],
    "bench/serving.py": [rf"^tiny bfloat16, 2 streams: engine alone {N} tok/s, through HTTP {N} tok/s, ratio {N}$"],
    "bench/soak.py": [
        r"^\| answered +\| +[1-9]",
        *(rf"^\| {name} +\| +0 \|" for name in ("altered", "duplicated", "lost", "hung", "violated")),
        r"^\| problems of the server \| +0 \|",
        r"^\| workers were started again because +\|",
    ],
}
"""What each script prints: lines that must be there."""
FILES = {
    "bench/curves.py": ["table.md", "figures.json", "plot.svg"],
    "bench/engine.py": ["table.md", "figures.json", "plot.svg"],
    "bench/memory.py": ["table.md", "figures.json", "plot.svg"],
    "bench/soak.py": ["table.md", "samples.json", "plot.svg"],
}
"""What each script writes into its folder of results."""


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
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_with_smoke(script: str, smoke_cache: Path) -> None:
    module_of(script)
    if "Needs Linux" in docstring(SCRIPTS[script]) and sys.platform != "linux":
        pytest.skip("needs Linux")
    results = smoke_cache / "bench" / "smoke" / Path(script).stem
    shutil.rmtree(results, ignore_errors=True)
    done = run([sys.executable, script, "--smoke"], smoke_cache)
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
    assert SCRIPTS.keys() >= OUTPUT.keys() >= FILES.keys()


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_child_that_refuses_what_its_script_gives_it_is_found(tmp_path: Path, smoke_cache: Path) -> None:
    """The servers of bench/gateway.py once refused the rate 0, with which they run flat out."""
    for each in ROOT.iterdir():
        if each.name == "bench":
            shutil.copytree(each, tmp_path / "bench", ignore=shutil.ignore_patterns("results", "__pycache__"))
        elif not each.name.startswith("."):
            (tmp_path / each.name).symlink_to(each)
    servers = tmp_path / "bench" / "streaming" / "servers.py"
    text = servers.read_text()
    assert text.count("rate: Annotated[float, Meta(ge=0.0)]") == 1
    servers.write_text(text.replace("rate: Annotated[float, Meta(ge=0.0)]", "rate: Annotated[float, Meta(gt=0.0)]"))
    done = run([sys.executable, str(tmp_path / "bench" / "gateway.py"), "--smoke"], smoke_cache)
    assert done.returncode == 1
    assert "Expected `float` > 0.0 - at `$.rate`" in done.stderr
    assert "the server ended with status 1 before it served" in done.stderr
