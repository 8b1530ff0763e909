"""The driver of llama.cpp, with scripts in place of its programs."""

import sys
from pathlib import Path

import pytest

from bench.peers.build import PeerError
from bench.peers.llama_cpp import PROGRAMS, TRIES, LlamaCpp

RESULT = '{"pp": 64, "tg": 32, "pl": 4, "speed_pp": 900.0, "speed_tg": 123.5}'


def programs(folder: Path, body: str = "") -> LlamaCpp:
    """Every program runs `body`, Python that finds its arguments in `words` and a folder of its own in `here`."""
    head = f"#!{sys.executable}\nimport json, pathlib, sys\nwords, here = sys.argv[1:], pathlib.Path({str(folder)!r})\n"
    for name in PROGRAMS:
        (folder / name).write_text(head + body)
        (folder / name).chmod(0o700)
    return LlamaCpp.find(folder, 2)


def test_one_sequence_is_measured_by_llama_bench(tmp_path: Path) -> None:
    peer = programs(tmp_path, "(here / 'words').write_text(' '.join(words))\nprint(json.dumps([{'avg_ts': 50.25}]))")
    assert peer.decode(Path("m.gguf"), 1, prompt=64, tokens=32) == 50.25
    assert (tmp_path / "words").read_text() == "-m m.gguf -p 0 -n 32 -d 64 -r 1 -o json -t 2"
    assert peer.prefill(Path("m.gguf"), 512) == 50.25
    assert "-p 512 -n 0" in (tmp_path / "words").read_text()


def test_several_are_measured_in_a_batch(tmp_path: Path) -> None:
    peer = programs(tmp_path, f"(here / 'words').write_text(' '.join(words))\nprint('log\\n' + {RESULT!r} + '\\n')")
    assert peer.decode(Path("m.gguf"), 4, prompt=64, tokens=32) == 123.5
    assert "-c 384 -npp 64 -ntg 32 -npl 4" in (tmp_path / "words").read_text()


@pytest.mark.parametrize(("missing", "runs"), [(TRIES - 1, TRIES), (TRIES, TRIES)])
def test_a_result_that_was_not_printed_is_asked_for_again(missing: int, runs: int, tmp_path: Path) -> None:
    body = f"""
count = len(list(here.glob('run*')))
(here / f'run{{count}}').touch()
if count >= {missing}:
    print({RESULT!r})
"""
    peer = programs(tmp_path, body)
    if missing < TRIES:
        assert peer.decode(Path("m.gguf"), 4, 64, 32) == 123.5
    else:
        with pytest.raises(PeerError, match="no result"):
            peer.decode(Path("m.gguf"), 4, 64, 32)
    assert len(list(tmp_path.glob("run*"))) == runs


def test_the_error_of_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    peer = programs(tmp_path, "sys.exit('no such file: ' + words[1])")
    with pytest.raises(PeerError, match=r"llama-bench ended with status 1: no such file: m\.gguf"):
        peer.prefill(Path("m.gguf"), 128)


def test_a_server_that_ends_while_it_loads_is_noticed(tmp_path: Path) -> None:
    peer = programs(tmp_path, "sys.exit(3)")
    with pytest.raises(PeerError, match="status 3"), peer.server(Path("m.gguf"), 1, 64):
        pass


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    programs(tmp_path)
    (tmp_path / "llama-bench").unlink()
    with pytest.raises(PeerError, match="has no llama-bench"):
        LlamaCpp.find(tmp_path, 2)
