"""ik_llama.cpp's programs, with scripts in their place."""

import sys
from pathlib import Path

import pytest

from bench.peers.build import PeerError, Source
from bench.peers.ggml import GgmlPeer, IkLlama, table_rate
from bench.peers.llama_cpp import PROGRAMS, LlamaCpp

TABLE = """
main: n_kv_max = 448, n_batch = 2048, n_ubatch = 512, flash_attn = 1

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    64 |     48 |    4 |    448 |    0.500 |   512.00 |    1.500 |   128.00 |    2.000 |   224.00 |
"""


def write_programs(folder: Path) -> None:
    body = f"""#!{sys.executable}
import json, pathlib, sys
pathlib.Path({str(folder / "words")!r}).write_text(" ".join(sys.argv[1:]))
if "-p" in sys.argv:
    print(json.dumps([{{"avg_ts": 50.25}}]))
else:
    print({TABLE!r}, file=sys.stderr)
"""
    for name in PROGRAMS:
        (folder / name).write_text(body)
        (folder / name).chmod(0o700)


def test_decode_is_read_from_the_table_of_the_fork(tmp_path: Path) -> None:
    write_programs(tmp_path)
    assert IkLlama(tmp_path, 2).decode(Path("m.gguf"), 4, prompt=64, tokens=48) == 128.0
    words = (tmp_path / "words").read_text()
    assert words == f"-m {Path('m.gguf').resolve()} -c 448 -npp 64 -ntg 48 -npl 4 -rtr -fa off -t 2"


def test_prefill_is_measured_by_llama_bench(tmp_path: Path) -> None:
    write_programs(tmp_path)
    assert IkLlama(tmp_path, 2).prefill(Path("m.gguf"), 512) == 50.25
    assert "-p 512 -n 0 -rtr 1 -fa 1" in (tmp_path / "words").read_text()


def test_output_without_a_table_is_no_figure() -> None:
    with pytest.raises(PeerError, match="no result: 'killed'"):
        table_rate("killed")


def test_a_peer_that_is_not_built_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path))
    source = Source("x.cpp", "x-python", "1.0", PROGRAMS, {})
    peer = GgmlPeer("x.cpp", source, LlamaCpp, "its defaults")
    assert peer.refusal("int8", "avx2") == "not built for avx2: run python bench/peers/install.py x.cpp --cpu avx2"
    folder = source.folder("avx2") / "bin"
    assert folder.is_relative_to(tmp_path)
    folder.mkdir(parents=True)
    write_programs(folder)
    assert peer.refusal("int8", "avx2") == ""
    assert peer.refusal("int8", "host").startswith("not built for host")
