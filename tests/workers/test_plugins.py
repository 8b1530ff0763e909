"""Plug-ins are validated, and an error names the distribution."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.baton_serve.plugin_folder import on_the_path, write_distribution
from tests.checkpoints import make_checkpoint
from workers.backend_plugin import load_backend
from workers.checkpoints.architectures.registered_families import registered_family
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.plugins import ADAPTERS, BACKENDS, FAMILIES, PluginRefused, registered_backends
from workers.process.backends import BackendMissing, choose_backend, load_runner
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe

BACKEND = """
from workers.backend_plugin import BackendPlugin
from workers.scripted.runner import ScriptedRunner

def load(path, config, options, progress):
    return ScriptedRunner(slots=options.slots, context=options.context, vocab_size=config.vocab_size)

GOOD = BackendPlugin(name="acme", load=load, probe=list, digest=("acme",))
OTHER_NAME = BackendPlugin(name="other", load=load, probe=list, digest=())
NO_FUNCTION = BackendPlugin(name="acme", load=1, probe=list, digest=())
NO_TEXTS = BackendPlugin(name="acme", load=load, probe=list, digest="acme")
NOT_INSTALLED = BackendPlugin(name="acme", load=load, probe=list, digest=("no-such-distribution",))
NO_RUNNER = BackendPlugin(name="acme", load=lambda *given: object(), probe=list, digest=())
LACKING = BackendPlugin(name="acme", load=load, probe=list, digest=(), packages=("no_such_module",))
LATE_IMPORT = BackendPlugin(name="acme", load=lambda *given: __import__("no_such_module"), probe=list, digest=())
"""
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a distribution with one entry point, which this process then finds."""

    def written(group: str, entry: str, value: str, *, name: str = "acme", version: str = "1.0") -> None:
        module = value.partition(":")[0]
        source = BACKEND if group == BACKENDS else "WRONG = 1"
        write_distribution(tmp_path / "path", name, {group: {entry: value}}, {f"{module}.py": source}, version)

    with on_the_path(tmp_path / "path", monkeypatch):
        yield written


REFUSED = {
    "another type": ("plug_a:load", "is of the type function, not workers.backend_plugin.BackendPlugin"),
    "no such object": ("plug_b:MISSING", "cannot be imported: AttributeError"),
    "another name": ("plug_c:OTHER_NAME", "has the name 'other'"),
    "no function": ("plug_d:NO_FUNCTION", "has no function as 'load'"),
    "no tuple": ("plug_e:NO_TEXTS", "has no tuple of texts as 'digest'"),
    "a distribution that is not installed": ("plug_f:NOT_INSTALLED", "no-such-distribution"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_wrong_backend_is_refused_with_its_distribution(write: Write, case: str) -> None:
    value, words = REFUSED[case]
    write(BACKENDS, "acme", value)
    with capture_logs() as logs, pytest.raises(PluginRefused, match=words) as refused:
        load_backend("acme")
    assert str(refused.value).startswith("baton_serve.backends: 'acme' of acme 1.0 ")
    assert [(line["event"], line["distribution"]) for line in logs if line["log_level"] == "warning"] == [
        ("plugin_refused", "acme 1.0")
    ]


def test_a_name_of_batons_own_is_ignored_and_logged(write: Write) -> None:
    write(BACKENDS, "iree", "plug_own:GOOD")
    with capture_logs() as logs:
        assert registered_backends() == {}
    assert [(line["event"], line["name"], line["distribution"]) for line in logs] == [
        ("plugin_refused", "iree", "acme 1.0")
    ]


def test_a_name_of_two_distributions_is_refused_with_both(write: Write) -> None:
    write(BACKENDS, "acme", "plug_g:GOOD")
    write(BACKENDS, "acme", "plug_h:GOOD", name="zenith", version="2.0")
    with pytest.raises(PluginRefused, match=r"of acme 1.0 and zenith 2.0 is registered more than once: uninstall"):
        load_backend("acme")


@pytest.mark.parametrize(("length", "fits"), [(64, True), (65, False)])
def test_a_name_has_at_most_64_characters(write: Write, length: int, fits: bool) -> None:
    write(BACKENDS, "a" * length, "plug_i:GOOD")
    words = "has the name 'acme'" if fits else "no printable name of 1 to 64 characters"
    with pytest.raises(PluginRefused, match=words):
        load_backend("a" * length)


def spec_of(path: Path, backend: str = "acme") -> WorkerSpec:
    return WorkerSpec(name="w0", model_name="m", model_path=str(path), backend=backend, context=64)


def test_an_unknown_backend_is_refused_with_the_known_ones(write: Write) -> None:
    write(BACKENDS, "acme", "plug_j:GOOD")
    with pytest.raises(BackendMissing, match="'nope' is none of auto, iree, mlx, scripted, acme: install"):
        choose_backend(spec_of(Path(), "nope"))


def test_missing_packages_of_a_backend_are_named(write: Write) -> None:
    write(BACKENDS, "acme", "plug_k:LACKING")
    with pytest.raises(BackendMissing, match="the acme backend needs no_such_module"):
        choose_backend(spec_of(Path()))


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("plug_l:NO_RUNNER", PluginRefused, "has a load that returns no runner but object, which has no 'attention'"),
        ("plug_m:LATE_IMPORT", BackendMissing, "the acme backend cannot be imported: No module named 'no_such_module'"),
    ],
    ids=["no runner", "late import"],
)
def test_a_load_that_gives_no_runner_is_refused(
    write: Write, tmp_path: Path, value: str, error: type[Exception], words: str
) -> None:
    write(BACKENDS, "acme", value)
    path = make_checkpoint(tmp_path / "model", layers=1)
    with pytest.raises(error, match=words):
        load_runner(spec_of(path), lambda phase, done, total: None)


def test_versions_of_a_plugin_are_a_part_of_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path / "model", layers=1)
    digests: list[str] = []
    for version in ("1.0", "1.1", "1.1"):
        folder = tmp_path / f"{version}-{len(digests)}"
        write_distribution(folder, "acme", {BACKENDS: {"acme": "plug_n:GOOD"}}, {"plug_n.py": BACKEND}, version)
        with on_the_path(folder, monkeypatch):
            digests.append(describe(spec_of(path)).digest)
    assert digests[0] != digests[1] == digests[2]


def test_a_family_of_another_type_is_refused_only_where_it_is_needed(write: Write, tmp_path: Path) -> None:
    write(FAMILIES, "acme_llama", "plug_o:WRONG")
    path = make_checkpoint(tmp_path / "model", layers=1)
    assert ModelConfig.from_dir(path).family == "llama"
    config = path / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"acme_llama"'))
    with pytest.raises(PluginRefused, match=r"'acme_llama' of acme 1\.0 is of the type int, not workers.*Family"):
        ModelConfig.from_dir(path)


def test_a_family_of_batons_own_cannot_be_replaced(write: Write) -> None:
    write(FAMILIES, "llama", "plug_p:WRONG")
    assert registered_family("llama") is None


def test_an_adapter_of_another_type_is_refused(write: Write, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
    write(FAMILIES, "acme_llama", "plug_q:WRONG")
    write(ADAPTERS, "acme_llama", "plug_r:WRONG", name="acme-mlx")
    from workers.mlx.families import adapter_plugin, is_batched

    plugin = adapter_plugin("acme_llama")
    assert is_batched("acme_llama")
    assert plugin is not None
    from workers.mlx.architecture import Adapter

    with pytest.raises(PluginRefused, match=r"of acme-mlx 1\.0 is of the type int, not workers\.mlx\.architecture"):
        plugin.load(Adapter)


def test_a_family_without_its_distribution_is_unknown(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=1)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"acme_llama"').replace('"Llama', '"AcmeLlama'))
    with pytest.raises(CheckpointError, match=r"AcmeLlamaForCausalLM.* is not supported, only one of"):
        ModelConfig.from_dir(path)
