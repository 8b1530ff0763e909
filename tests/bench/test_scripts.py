"""Every script under bench/ explains itself, bounds its numbers and has a smoke mode."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.scripts import BENCH, CHILD, CHILDREN, SCRIPTS, docstring, parse

FILES = sorted(file for file in BENCH.rglob("*.py") if "add_argument(" in file.read_text())
VALUES = {"N": "1", "ROWS": "1", "DIR": "dir", "FILE": "file", "FOLDER": "dir", "NAME": "name", "CHECKPOINT": "dir"}
"""Values for the names in a usage line."""


def options(file: Path) -> Iterator[ast.Call]:
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            yield call


def usages(script: str) -> list[str]:
    """The commands on the script's page, with all options that they show and values in place of names."""
    page = docstring(SCRIPTS[script])
    lines = re.findall(rf"^ {{4}}(python {re.escape(script)}\b.*(?:\n {{8,}}\S.*)*)", page, flags=re.MULTILINE)
    found = []
    for line in lines:
        alternatives = re.sub(r"\[([^\]|]*)\|[^\]]*\]", r"\1", line)
        words = alternatives.replace("[", " ").replace("]", " ").replace(" ... ", " ").split()
        found.append(" ".join(VALUES.get(word, word) for word in words))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_option_is_explained(file: Path) -> None:
    for call in options(file):
        assert any(keyword.arg == "help" for keyword in call.keywords), ast.unparse(call)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_number_but_a_seed_has_a_bound(file: Path) -> None:
    for call in options(file):
        kinds = {ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "type"}
        assert not kinds & {"int", "float"} or ast.literal_eval(call.args[0]) == "--seed", ast.unparse(call)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_shows_commands_that_the_script_accepts(script: str) -> None:
    commands = usages(script)
    assert commands, "the page shows no command"
    for command in commands:
        parse(command)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_has_a_smoke_mode(script: str) -> None:
    assert parse(f"python {script} --smoke").smoke


@pytest.mark.parametrize("child", CHILDREN)
def test_every_child_names_the_script_that_starts_it(child: str) -> None:
    page = docstring(CHILDREN[child])
    parent = page.removeprefix(CHILD).partition("`")[0]
    assert parent in SCRIPTS
    assert f"python {child}" in page


def test_scripts_and_children_are_found() -> None:
    assert {"bench/engine.py", "bench/kernels/paging.py", "bench/peers/llama_cpp.py"} <= SCRIPTS.keys()
    assert CHILDREN.keys() == {
        *(f"bench/gateway_load/{name}.py" for name in ("servers", "mlx_front", "vllm_front")),
        "bench/links/children.py",
        *(f"bench/scale_out/{name}.py" for name in ("paced_scale", "paced_worker", "ray_nodes")),
        "bench/gpu/stages.py",
        *(
            f"bench/peers/children/{name}.py"
            for name in ("baton", "convert_to_gguf", "onnxruntime_genai", "openvino_genai", "vllm_cpu")
        ),
    }


def test_a_wrong_command_is_found() -> None:
    with pytest.raises(SystemExit):
        parse("python bench/gateway.py --rate 0.0")
    with pytest.raises(LookupError):
        parse("python bench/no_such.py --smoke")
