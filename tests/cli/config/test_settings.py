"""The three sources of settings, and errors that name the source."""

from pathlib import Path

import pytest

from cli.config.settings import Settings, flag
from cli.config.sources import InvalidSettings, load, unknown_variables
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.usefixtures("no_settings")


def toml(text: str, name: str = "baton.toml") -> Path:
    file = Path(name)
    file.write_text(text)
    return file


def test_defaults_serve_the_builtin_model_on_loopback() -> None:
    settings = load({})
    assert (settings.model, settings.host, settings.port, settings.max_batch_size) == ("", "127.0.0.1", 8000, 8)


def test_flags_take_precedence_over_variables_and_those_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    toml("port = 1\nworkers = 2\nthreads = 3")
    monkeypatch.setenv("BATON_PORT", "4")
    monkeypatch.setenv("BATON_WORKERS", "5")
    settings = load({"port": 6, "workers": None})
    assert (settings.port, settings.workers, settings.threads) == (6, 5, 3)
    assert settings.sources == {"port": "--port", "workers": "BATON_WORKERS", "threads": "baton.toml: threads"}


def test_a_named_file_is_read_instead_of_baton_toml() -> None:
    toml("port = 1")
    assert load({}, toml("port = 2", "other.toml")).port == 2


def test_the_file_can_be_named_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CONFIG", str(toml("port = 3", "other.toml")))
    assert load({}).port == 3


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_PORT", "")
    assert load({}).port == 8000


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("port", 65535, 65536),
        ("port", 0, -1),
        ("max_batch_size", 1, 0),
        ("max_batch_size", 4096, 4097),
        ("workers", 0, -1),
        ("workers", 64, 65),
        ("context", 1 << 20, (1 << 20) + 1),
        ("threads", 4096, 4097),
        ("name", "n" * 128, "n" * 129),
        ("backend", "mlx", "cuda"),
        ("dtype", "bfloat16", "int8"),
        ("host", "h", ""),
    ],
)
def test_a_bound_is_inclusive_and_its_violation_names_the_flag(name: str, inside: object, outside: object) -> None:
    assert getattr(load({name: inside}), name) == inside
    with pytest.raises(InvalidSettings, match=f"^--{name.replace('_', '-')}: .*, not "):
        load({name: outside})


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_PORT", "eighty")
    with pytest.raises(InvalidSettings, match=r"^BATON_PORT: must be a whole number from 0 to 65535, not 'eighty'$"):
        load({})


def test_a_wrong_line_of_the_file_is_named() -> None:
    toml("port = 99999")
    with pytest.raises(InvalidSettings, match=r"^baton.toml: port: .*, not 99999$"):
        load({})


def test_every_wrong_setting_is_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as error:
        load({"port": -1, "workers": -1})
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == ["--port", "--workers"]


def test_an_unknown_line_of_the_file_is_refused_with_a_guess() -> None:
    toml("prot = 8000")
    with pytest.raises(InvalidSettings, match=r"^baton.toml: prot is not a setting \(did you mean port\?\)$"):
        load({})


def test_a_file_that_is_not_toml_is_refused() -> None:
    toml("port: 8000")
    with pytest.raises(InvalidSettings, match=r"^baton.toml is not TOML: "):
        load({})


def test_a_named_file_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match=r"^--config: there is no file none.toml$"):
        load({}, Path("none.toml"))
    monkeypatch.setenv("BATON_CONFIG", "none.toml")
    with pytest.raises(InvalidSettings, match=r"^BATON_CONFIG: "):
        load({})


def test_an_unknown_variable_is_a_warning_with_a_guess() -> None:
    assert unknown_variables({"BATON_PROT": "1", "BATON_PORT": "1", "BATON_CONFIG": "", "OTHER": ""}) == [
        "BATON_PROT is not a setting (did you mean BATON_PORT?); it is ignored"
    ]
    assert unknown_variables({"BATON_URL": "1"}) == ["BATON_URL is not a setting; it is ignored"]


def test_settings_shared_with_the_gateway_have_its_defaults_and_bounds() -> None:
    shared = GatewaySettings.__dataclass_fields__.keys() & Settings.model_fields.keys()
    assert {"host", "port", "api_key", "shutdown_grace_s"} <= shared
    for name in shared:
        assert Settings.model_fields[name].default == GatewaySettings.__dataclass_fields__[name].default, name
        for bound in Settings.model_fields[name].metadata:
            for edge in (getattr(bound, "ge", None), getattr(bound, "le", None)):
                if edge is not None:
                    others = {"max_choices": 1, "max_streams_per_worker": 1 << 20, "max_body_bytes": 1}
                    others |= {"max_answer_bytes": 1 << 20} if name == "max_total_answer_bytes" else {}
                    GatewaySettings(**others | {name: edge})


def test_every_setting_is_described_and_has_its_panel() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith((".", ")")), name
        assert isinstance(field.json_schema_extra, dict), name


@pytest.mark.parametrize("name", ["allowed_hosts", "cors_origins"])
def test_a_list_has_a_flag_for_each_entry_and_commas_in_a_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(load({}), name) == ()
    toml(f'{name} = ["a", "b"]')
    assert getattr(load({}), name) == ("a", "b")
    monkeypatch.setenv(f"BATON_{name.upper()}", "c, d,")
    assert getattr(load({}), name) == ("c", "d")
    assert getattr(load({name: ["e"]}), name) == ("e",)
    assert flag(name) == "--" + name.replace("_", "-").removesuffix("s")
