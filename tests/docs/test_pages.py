"""The pages for people: every command parses, every link leads somewhere, every setting and metric is listed."""

import base64
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer.main
from msgspec import Struct
from msgspec.json import decode as json_decode

from cli.config.model_settings import ModelSettings
from cli.config.panels.field import PANELS
from cli.config.settings import Settings, flag, of_panels
from cli.config.sources import load
from cli.main import app
from gateway.admin.adapters.adapter_routes import LoadLoraAdapter, UnloadLoraAdapter
from gateway.errors import STATUS, RefusalCode
from gateway.metrics.metrics import Metrics
from gateway.openai.classify.schema import ClassifyBody
from gateway.openai.decoding import RequestDecoder
from gateway.openai.embeddings.schema import EmbeddingsBody
from gateway.openai.rerank.schema import RerankBody
from gateway.openai.schema import ChatBody, ChatMessage, CompletionBody, StreamOptions
from gateway.openai.scores.schema import ScoreBody
from gateway.openai.unsupported import OPTIONS, options_of
from gateway.responses.request.schema import ResponsesBody
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from tests.docs.commands import OPERATIONS_PAGES
from tests.test_house import IMPORTED_IN
from workers.engine.runner import Runner

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    file
    for folder in (".", "docs", "docs/adr", "docs/operations", "docs/benchmarks", "deploy", ".github")
    for file in (ROOT / folder).glob("*.md")
)
HTTP = (ROOT / "docs" / "http.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `baton` command in the page's console blocks."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for part in re.split(r"\n|&&", block):
            words = shlex.split(part)
            if words and Path(words[0]).name == "baton":
                yield words[1:]


def parse(words: list[str]) -> None:
    """Let typer read the words as it would, without running anything."""
    root = typer.main.get_command(app)
    context = root.make_context("baton", list(words))
    name, command, rest = root.resolve_command(context, words)  # type: ignore[attr-defined]
    inner = command.make_context(name, list(rest), parent=context)
    if hasattr(command, "resolve_command"):  # a group of commands, such as `admin`
        name, command, rest = command.resolve_command(inner, rest)
        command.make_context(name, rest, parent=inner)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)[:60]) for page in PAGES for words in commands(page)]
)
def test_every_command_parses(words: list[str]) -> None:
    parse(words)


def test_the_index_of_the_operations_guide_lists_its_pages() -> None:
    assert sorted(OPERATIONS_PAGES[1:]) == sorted((ROOT / "docs" / "operations").iterdir())


def test_the_index_of_the_benchmarks_lists_its_pages() -> None:
    index = (ROOT / "docs" / "benchmarks.md").read_text()
    listed = re.findall(r"^- \[.*?\]\(benchmarks/([\w-]+\.md)\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(file.name for file in (ROOT / "docs" / "benchmarks").iterdir())


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "docs" in page.parts], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_page_begins_with_what_it_is_for(page: Path) -> None:
    """A sentence, not a table or the first section."""
    assert re.match(r"# .+\n\n[\w`\[*]", page.read_text())


def test_a_wrong_command_does_not_parse() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["serve", "--prot", "1"])


def test_the_first_screen_has_the_two_commands_as_they_are() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:25]
    assert "pip install . && baton serve" in first_screen
    assert "pip install -e '.[test]' && pytest" in first_screen


def anchor_of(title: str) -> str:
    """Return the anchor that GitHub gives a heading: lower case, without punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_within_the_house_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert file != page or (anchor and not path), f"{target} leads to the page that has it"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            assert anchor in {anchor_of(title) for title in titles}, target


def table(title: str) -> list[list[str]]:
    pattern = re.compile(rf"^##+ {title}\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
    (section,) = [found[1] for page in OPERATIONS_PAGES if (found := pattern.search(page.read_text()))]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_setting_is_listed_as_it_is() -> None:
    listed = [row for title in PANELS for row in table(title)]
    actual = [
        [
            "`MODEL`" if name == "model" else f"`{flag(name)}`",
            f"`{name}`",
            "empty" if field.default in ("", ()) else str(field.default),
            field.description,
        ]
        for name in of_panels(*PANELS)
        for field in [Settings.model_fields[name]]
    ]
    assert listed == actual


def test_every_field_of_a_request_is_listed() -> None:
    section = HTTP.partition("## Request fields\n")[2].partition("| Option |")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    bodies = (CompletionBody, ChatBody)
    assert listed == {name for body in bodies for name in {*body.__struct_fields__}.difference(options_of(body))}


def test_every_unsupported_option_is_listed_with_its_place_and_the_accepted_values() -> None:
    page = HTTP.partition("| Option | Endpoint | Accepted besides `null` |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|(.*)\|$", page, flags=re.MULTILINE)
    places: dict[str, type[Struct]] = {"chat": ChatBody, "completions": CompletionBody, "chat messages": ChatMessage}
    places["`stream_options`"] = StreamOptions
    listed = {
        name: (where.split(", "), [json.loads(value) for value in re.findall(r"`(.*?)`", values)])
        for name, where, values in rows
    }
    assert listed == {
        name: ([where for where, body in places.items() if name in options_of(body)], list(values))
        for name, values in OPTIONS.items()
    }


def test_every_metric_is_listed() -> None:
    source = "".join(file.read_text() for file in (ROOT / "gateway" / "metrics").glob("*.py"))
    named = {name.removesuffix("_total") for name in re.findall(r'"(baton_[a-z_]+)"', source)}
    assert {row[0].strip("`").removesuffix("_total") for row in table("Metrics")} == named


def test_every_metric_is_listed_with_its_kind() -> None:
    """Those of Prometheus' text format, as a scrape has them."""
    metrics = Metrics(lambda: (), dict, dict)
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", metrics.render().decode(), flags=re.MULTILINE)
    ours = ((name, kind) for name, kind in kinds if name.startswith("baton_") and not name.endswith("_created"))
    scraped = dict(ours)
    assert {row[0].strip("`"): row[1] for row in table("Metrics")} == scraped


def test_vllms_names_are_listed_and_say_which_of_ours_they_are() -> None:
    metrics = Metrics(lambda: (), dict, dict, "vllm")
    scraped = set(re.findall(r"^# TYPE (vllm:\w+) ", metrics.render().decode(), flags=re.MULTILINE))
    rows = table("The names of vLLM")
    assert {row[0].strip("`") for row in rows} == scraped
    known = {row[0].strip("`") for row in table("Metrics")}
    assert {name for row in rows for name in re.findall(r"baton_\w+", row[1])} <= known


def test_the_alerts_use_metrics_that_exist() -> None:
    used = {name for row in table("Alerts") for name in re.findall(r"baton_\w+", row[1])}
    assert used
    known = {row[0].strip("`") for row in table("Metrics")}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= known


def test_the_log_events_that_are_listed_exist() -> None:
    """With their levels."""
    listed = {(row[0].strip("`"), row[1]) for row in table("Logs")}
    assert listed
    sources = [file for part in ("actors", "cli", "gateway", "workers") for file in (ROOT / part).rglob("*.py")]
    logged = {
        (event, level)
        for file in sources
        for level, event in re.findall(r'\.(debug|info|warning|error)\(\s*"(\w+)"', file.read_text())
    }
    assert listed <= logged, listed - logged


def test_every_log_event_is_listed() -> None:
    listed = {row[0].strip("`") for row in table("Logs")}
    sources = [file for part in ("actors", "cli", "gateway", "workers") for file in (ROOT / part).rglob("*.py")]
    found = [re.findall(r'log\.(?:debug|info|warning|error)\(\s*"(\w+)"', file.read_text()) for file in sources]
    assert found
    assert {event for events in found for event in events} <= listed


@pytest.mark.parametrize("code", STATUS, ids=str)
def test_every_error_code_is_listed_with_its_status(code: ErrorCode | RefusalCode) -> None:
    page = HTTP.partition("## Errors")[2].partition("##")[0]
    rows = re.findall(r"^\| (\d+.*?) \| (.*?) \|", page, re.MULTILINE)
    assert str(STATUS[code]) in ", ".join(statuses for statuses, codes in rows if f"`{code}`" in codes).split(", ")


def test_no_other_error_code_is_listed() -> None:
    page = HTTP.partition("## Errors")[2].partition("##")[0]
    rows = re.findall(r"^\| \d+.*? \| (.*?) \|", page, re.MULTILINE)
    assert {code for codes in rows for code in re.findall(r"`(\w+)`", codes)} == {str(code) for code in STATUS}


def test_the_file_in_the_guide_is_one_that_baton_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in (ROOT / "docs" / "operations.md", ROOT / "deploy" / "README.md"):
        block = re.search(r"^```toml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert block
        (tmp_path / "baton.toml").write_text(block[1])
        monkeypatch.chdir(tmp_path)
        assert load({}).model


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_example_compiles(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        compile(block, page.name, "exec")


BODIES = {
    "/v1/chat/completions": ChatBody,
    "/v1/classify": ClassifyBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/load_lora_adapter": LoadLoraAdapter,
    "/v1/rerank": RerankBody,
    "/v1/responses": ResponsesBody,
    "/v1/score": ScoreBody,
    "/v1/unload_lora_adapter": UnloadLoraAdapter,
}
"""The bodies of the paths to which the pages send requests by curl."""


def curl_examples(page: Path) -> list[tuple[str, str]]:
    """The paths and the bodies of the requests in the page's console blocks."""
    return [
        (urlsplit(words[1]).path, words[words.index("-d") + 1])
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if (words := shlex.split(line))[:1] == ["curl"] and "-d" in words
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/http.md", "docs/operations/adapters.md"])
def test_the_bodies_of_the_curl_examples_are_accepted(page: str) -> None:
    examples = curl_examples(ROOT / page)
    assert examples
    for path, body in examples:
        decoded = json_decode(body, type=BODIES[path])
        named = decoded.lora_name if isinstance(decoded, LoadLoraAdapter | UnloadLoraAdapter) else decoded.model
        assert named in {"baton-tiny", "moods", "sql"}
        if path == "/v1/chat/completions":
            RequestDecoder(GatewaySettings()).chat(body.encode())


def test_the_image_that_the_shell_sends_is_the_file(tmp_path: Path) -> None:
    (made,) = re.findall(r"^(\(echo .*base64 < cat.jpg.*\)) \| curl .* -d @-$", HTTP, re.MULTILINE)
    file = bytes(range(256)) * 9
    (tmp_path / "cat.jpg").write_bytes(file)
    body = subprocess.run(made, shell=True, cwd=tmp_path, capture_output=True, check=True).stdout
    body = body.replace(b"\n", b"")  # as curl does
    assert isinstance(json_decode(body, type=ChatBody), ChatBody)
    url = json.loads(body)["messages"][0]["content"][1]["image_url"]["url"]
    assert url == f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_of_the_house_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"\b((?:protocol|actors|gateway|workers|cli|models|tests)/[\w/]+\.py)\b", page.read_text()):
        assert (ROOT / name).is_file(), name


def test_the_places_of_heavy_libraries_are_those_that_are_tested() -> None:
    """The first place of each; benchmarks and the built-in model's training have others."""
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "architecture.md").read_text())
    sentence = re.search(r"Each heavy library is imported in one place: (.*?)\. ", text)
    assert sentence
    stated = dict(re.findall(r"([\w ]+) in `(\S+)`", sentence[1]))
    libraries = {name: place for names, place in stated.items() for name in names.replace(" and ", " ").split()}
    assert libraries == {name: IMPORTED_IN[name][0] for name in ("zmq", "mlx", "iree", "jax", "hypercorn")}


def test_the_guide_to_runners_lists_the_whole_contract() -> None:
    guide = (ROOT / "docs" / "adding-a-runner.md").read_text()
    listed = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|", guide, flags=re.MULTILINE)
    contract = [name for name in vars(Runner) if not name.startswith("_")]
    assert listed == contract


def test_the_folders_of_tests_without_counterpart_are_those_that_are_listed() -> None:
    section = CONTRIBUTING.partition("have no counterpart in the source:\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([\w/]+)/`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))
    folders = {file.parent for file in (ROOT / "tests").rglob("*.py")} - {ROOT / "tests"}
    alone = {each for each in folders if not (ROOT / each.relative_to(ROOT / "tests")).is_dir()}
    names = {each.name if each.name in listed else each.relative_to(ROOT).as_posix() for each in alone}
    assert names == listed - {"golden"}
    assert list((ROOT / "tests").rglob("golden")), "has no modules"


def test_every_setting_of_a_model_is_listed_as_it_is() -> None:
    cells = [(row[0].strip("`"), row[2]) for row in table("Several models")[: len(ModelSettings.model_fields)]]
    assert cells == [(name, field.description) for name, field in ModelSettings.model_fields.items()]
