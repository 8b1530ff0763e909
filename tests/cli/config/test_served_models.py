"""Several models in the settings: what they become, and errors that name the field."""

import math
import os
from pathlib import Path

import msgspec
import pytest

from cli.config.errors import CommandFailed
from cli.config.model_settings import MAX_ALIASES, MAX_MODELS, OWN, ModelSettings
from cli.config.served_models import MAX_WORKERS, ServedModels
from cli.config.settings import Settings
from cli.config.several import memory_plan
from cli.config.several.planned_model import KEEP_ALIVE_S
from cli.config.sources import InvalidSettings, load
from tests.checkpoints import make_checkpoint, make_tokenizer
from workers.checkpoints.checkpoint import DEFAULT_CONTEXT
from workers.host.memory import SHARE
from workers.process.spec import WorkerSpec
from workers.process.startup import context_choice
from workers.process.startup.describe import describe
from workers.process.startup.footprint import Footprint

MOST = 131_072

pytestmark = pytest.mark.usefixtures("no_settings")


def toml(*models: str, rest: str = 'backend = "scripted"') -> Settings:
    Path("baton.toml").write_text("\n".join([rest, *(f"[[models]]\n{model}" for model in models)]))
    return load({})


def specs(served: ServedModels) -> list[WorkerSpec]:
    return [msgspec.json.decode(each.command("ipc://x", 1)[-1], type=WorkerSpec) for each in served.launches]


def test_each_model_has_its_own_workers_and_settings() -> None:
    served = ServedModels.of(
        toml(
            'name = "a"\nload = "start"\nworkers = 2\nstandby = 1\nmax_batch_size = 3\nmemory_bytes = 5\npriority = 7',
            'name = "b"\naliases = ["c", "d"]\ncontext = 99\nkeep_alive_s = 1.5\nmemory_bytes = 4',
            'name = "e"\nkeep_alive_s = "never"',
            rest='backend = "scripted"\nmax_batch_size = 6\nmemory_budget = 100',
        )
    )
    workers = [(each.name, each.model, each.standby, each.on_demand) for each in served.launches]
    assert workers == [
        ("w0", "a", False, False),
        ("w1", "a", False, False),
        ("w2", "a", True, False),
        ("w3", "b", False, True),
        ("w4", "e", False, True),
    ]
    assert [each.max_batch_size for each in specs(served)] == [3, 3, 3, 6, 6]
    assert [(each.workers, each.place) for each in specs(served)] == [(2, 0), (2, 1), (2, None), (1, 0), (1, 0)]
    a, b, e = served.terms
    assert (a.bytes, a.fixed, a.keep_alive_s, a.priority, a.load) == (15, True, math.inf, 7, "start")
    assert (b.aliases, b.context, b.keep_alive_s, b.backend) == (("c", "d"), 99, 1.5, "scripted")
    assert (e.bytes, e.fixed, e.keep_alive_s) == (0, False, math.inf)
    assert served.budget == 100


def test_flags_and_a_variable_name_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedModels.of(load({"models": ["a=", "b="], "backend": "scripted"}))
    assert [(each.name, each.load, each.keep_alive_s) for each in served.terms] == [
        ("a", "first-use", KEEP_ALIVE_S),
        ("b", "first-use", KEEP_ALIVE_S),
    ]
    assert 0 < served.budget < math.inf, "a share of the machine's memory"
    monkeypatch.setenv("BATON_MODELS", "x=, y=")
    assert [each.name for each in ServedModels.of(load({"backend": "scripted"})).terms] == ["x", "y"]


def test_a_path_without_a_name_has_its_own(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "mine")
    (model,) = load({"models": [str(tmp_path / "mine")]}).models
    assert (model.name, model.path) == ("", str(tmp_path / "mine"))
    (terms,) = ServedModels.of(load({"models": [str(tmp_path / "mine")], "backend": "scripted"})).terms
    assert terms.name == "mine"


def test_one_model_is_loaded_at_the_start_and_stays() -> None:
    served = ServedModels.of(load({"backend": "scripted", "name": "m", "workers": "2"}))
    assert [(each.name, each.on_demand) for each in served.launches] == [("w0", False), ("w1", False)]
    (terms,) = served.terms
    assert (terms.name, terms.load, terms.keep_alive_s, served.budget) == ("m", "start", math.inf, math.inf)
    assert ServedModels.of(load({"workers": "0"})) == ServedModels()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nmae = 'x'", "baton.toml: models[0].nmae is not a setting of a model (did you mean name?)"),
        ("load = 'never'", "baton.toml: models[0].load: must be one of start, first-use, not 'never'"),
        ("workers = 0", "baton.toml: models[0].workers: must be a whole number from 1 to 64, not 0"),
        ("workers = true", "baton.toml: models[0].workers: must be a whole number from 1 to 64, not true"),
        ("priority = 101", "baton.toml: models[0].priority: must be a whole number from -100 to 100, not 101"),
        ("keep_alive_s = -1", "must be a number from 0 to 315360000, or 'never', not -1"),
        ("keep_alive_s = 'soon'", "must be a number from 0 to 315360000, or 'never', not 'soon'"),
        ("keep_alive_s = nan", "must be a number from 0 to 315360000, or 'never', not nan"),
        ("aliases = ['']", "baton.toml: models[0].aliases: must be a list of at most 16 names, each a text of 1 to"),
        ("aliases = 'x'", "baton.toml: models[0].aliases: must be a list of at most 16 names"),
        (f"aliases = {['x'] * (MAX_ALIASES + 1)}", "models[0].aliases: must be a list of at most 16 names"),
        ("quantize = 'int3'", "models[0].quantize: must be one of none, int8, int4, not 'int3'"),
        ("context = 'long'", "baton.toml: models[0].context: must be a whole number from 0 to"),
    ],
)
def test_a_wrong_setting_is_named(line: str, message: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        toml(line)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_number_of_models_is_bounded() -> None:
    assert len(load({"models": [f"m{number}=" for number in range(MAX_MODELS)]}).models) == MAX_MODELS
    with pytest.raises(InvalidSettings, match="--model: must be a list of at most 64"):
        load({"models": [f"m{number}=" for number in range(MAX_MODELS + 1)]})


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            ["name = 'a'", "name = 'a'"],
            "baton.toml: models[1].name: 'a' is a name of baton.toml: models[0].name already",
        ),
        (["name = 'a'\naliases = ['a']"], "baton.toml: models[0].aliases: 'a' is a name of"),
        (["name = 'a'", "name = 'b'\naliases = ['c', 'a']"], "models[1].aliases: 'a' is a name of"),
        (['name = "a\\nb"'], "baton.toml: models[0].name: 'a\\nb' has control characters"),
        (['name = "a"\naliases = ["b\\u001b"]'], "baton.toml: models[0].aliases: 'b\\x1b' has control characters"),
        (["name = 'a'\nbackend = 'auto'\npath = '/none/such'"], "baton.toml: models[0]: /none/such"),
        (["name = 'a'\nmemory_bytes = 101"], "models[0]: a takes 101 bytes, more than --memory-budget has, 100"),
        (["name = 'a'\nworkers = 2\nmemory_bytes = 51"], "models[0]: a takes 102 bytes"),
        (
            ["name = 'a'\nload = 'start'\nmemory_bytes = 51", "name = 'b'\nload = 'start'\nmemory_bytes = 50"],
            "a, b take 101 bytes together, more than --memory-budget has, 100: load one of them on first-use",
        ),
    ],
)
def test_models_that_cannot_be_served_together_are_refused(models: list[str], message: str) -> None:
    with pytest.raises(CommandFailed) as error:
        ServedModels.of(toml(*models, rest='backend = "scripted"\nmemory_budget = 100'))
    assert message in str(error.value)


def test_the_number_of_workers_is_bounded() -> None:
    models = [f"name = 'm{number}'\nworkers = 64" for number in range(MAX_WORKERS // 64)]
    assert len(ServedModels.of(toml(*models)).launches) == MAX_WORKERS
    with pytest.raises(CommandFailed, match=r"models: 257 workers in all are more than 256"):
        ServedModels.of(toml(*models, "name = 'one'"))


OF_ONE = {"model": "x", "name": "x", "workers": 2, "standby": 1, "prefill_workers": 1}


@pytest.mark.parametrize("name", OF_ONE)
def test_settings_of_a_single_model_are_refused_beside_several(name: str) -> None:
    toml("name = 'a'")
    settings = load({name: OF_ONE[name]})
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(CommandFailed, match=rf"^{flag}: not with baton.toml: models, whose models have their own$"):
        ServedModels.of(settings)


def test_an_own_setting_has_the_bounds_of_the_server_s_setting() -> None:
    for name in OWN:
        own, of_server = ModelSettings.model_fields[name], Settings.model_fields[name]
        bounds = [
            [each for each in field.metadata if hasattr(each, "ge") or hasattr(each, "le")]
            for field in (own, of_server)
        ]
        assert bounds[0] == bounds[1], name


def test_the_settings_of_a_model_are_checked_with_its_name_in_errors(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m")
    make_tokenizer(path)
    models = [f"path = '{path}'\nname = 'a'", f"path = '{path}'\nname = 'b'\ncontext = 100000"]
    with pytest.raises(CommandFailed, match=r"^baton.toml: models\[1\]: .*max_position_embeddings"):
        ServedModels.of(toml(*models, rest='backend = "iree"'))


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_the_memory_of_a_checkpoint_is_estimated(tmp_path: Path, quantize: str) -> None:
    path = make_checkpoint(tmp_path / "m")
    (terms,) = ServedModels.of(toml(f"path = '{path}'\nname = 'a'\nquantize = '{quantize}'", rest="")).terms
    assert terms.bytes > 0
    assert terms.quantization == ("" if quantize == "none" else quantize)
    several = ServedModels.of(toml(f"path = '{path}'\nname = 'a'\nquantize = '{quantize}'\nworkers = 3", rest=""))
    assert several.terms[0].bytes == 3 * terms.bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of many positions, with a tokenizer."""
    return make_checkpoint(tmp_path / "m", dtype="bfloat16", max_positions=MOST)


class TestContext:
    """The context that is left open, of each of several models."""

    @pytest.fixture(autouse=True)
    def _free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 40
        monkeypatch.setattr(memory_plan, "spare_bytes", lambda: self.free)

    def footprint(self, path: Path) -> Footprint:
        return Footprint.of(WorkerSpec("w0", "m", str(path), backend="iree", max_batch_size=1))

    def serve(self, path: Path, budget: float, *models: str, rest: str = "max_batch_size = 1") -> ServedModels:
        own = [f'path = "{path}"\n{model}' for model in models]
        return ServedModels.of(toml(*own, rest=f'backend = "iree"\nmemory_budget = {int(budget)}\n{rest}'))

    def test_it_is_the_model_s_own_where_the_budget_allows_it_and_said_in_the_terms(self, path: Path) -> None:
        found = self.footprint(path)
        whole = found.weights + found.row_bytes * MOST
        served = self.serve(path, 2 * whole, 'name = "a"', 'name = "b"')
        assert [(each.context, each.model_context, each.context_bound) for each in served.terms] == [
            (MOST, MOST, ""),
            (MOST, MOST, ""),
        ]
        served = self.serve(path, 2 * whole - 1, 'name = "a"', 'name = "b"')
        contexts = [(each.context, each.model_context, each.context_bound) for each in served.terms]
        assert contexts == [(MOST, MOST, ""), (122_880, MOST, "memory")]
        assert sum(each.bytes for each in served.terms) <= 2 * whole - 1

    def test_workers_get_it_with_the_cache_that_the_budget_counts(self, path: Path) -> None:
        found = self.footprint(path)
        budget = 3 * (found.weights + found.row_bytes * 8192)
        served = self.serve(path, budget, 'name = "a"\nworkers = 2', 'name = "b"')
        for spec, terms in zip(specs(served), (served.terms[0], served.terms[0], served.terms[1]), strict=True):
            described = describe(spec)
            assert (described.context, described.context_bound) == (8192, "memory")
            assert (terms.context, terms.model_context) == (8192, MOST)
            assert spec.kv_most == found.row_bytes * 8192
            assert terms.bytes == (2 if terms.name == "a" else 1) * (found.weights + spec.kv_most)

    def test_the_cache_of_more_slots_holds_a_longer_context_for_nothing(self, path: Path) -> None:
        (terms,) = self.serve(path, 1 << 29, 'name = "a"\nmax_batch_size = 32').terms
        assert terms.context == MOST
        (terms,) = self.serve(path, terms.bytes, 'name = "a"\nmax_batch_size = 4').terms
        assert terms.context == MOST

    def test_memory_that_others_have_now_is_given_to_no_context(self, path: Path) -> None:
        found = self.footprint(path)
        self.free = int((found.weights + found.row_bytes * 8192) / SHARE) + 2
        (terms,) = self.serve(path, 1 << 40, 'name = "a"').terms
        assert (terms.context, terms.context_bound) == (8192, "memory")
        self.free = 0
        (terms,) = self.serve(path, 1 << 40, 'name = "a"').terms
        assert (terms.context, terms.context_bound) == (DEFAULT_CONTEXT, "memory")

    def test_memory_bytes_are_for_the_weights_and_the_cache(self, path: Path) -> None:
        found = self.footprint(path)
        memory = found.weights + found.row_bytes * 10_000
        served = self.serve(path, 1 << 40, f'name = "a"\nmemory_bytes = {memory}')
        (terms,), (spec,) = served.terms, specs(served)
        assert (terms.context, terms.bytes, terms.fixed) == (9216, memory, True)
        assert spec.kv_most == found.row_bytes * 10_000
        (terms,) = self.serve(path, 1 << 40, 'name = "a"\nmemory_bytes = 5').terms
        assert terms.context == DEFAULT_CONTEXT

    def test_what_is_set_is_taken(self, path: Path) -> None:
        found = self.footprint(path)
        served = self.serve(path, 1 << 40, 'name = "a"\ncontext = 9000', 'name = "b"')
        (terms, _), (spec, _) = served.terms, specs(served)
        assert (terms.context, terms.context_bound, spec.kv_most) == (9000, "setting", 0)
        assert terms.bytes == found.weights + found.row_bytes * 9000
        kv_bytes = 5000 * found.row_bytes
        (terms,) = self.serve(path, 1 << 40, f'name = "a"\nkv_bytes = {kv_bytes}').terms
        assert (terms.context, terms.bytes) == (4608, found.weights + 4608 * found.row_bytes)

    def test_one_model_has_all_of_a_budget(self, path: Path) -> None:
        found = self.footprint(path)
        budget = found.weights + found.row_bytes * 10_000
        for slots, rows in ((1, 9216), (2, 10_000)):
            settings = load({"backend": "iree", "model": str(path), "memory_budget": budget, "max_batch_size": slots})
            served = ServedModels.of(settings)
            (terms,), (spec,) = served.terms, specs(served)
            assert (terms.context, describe(spec).context) == (9216, 9216)
            assert (spec.kv_most, terms.bytes) == (found.row_bytes * rows, found.weights + found.row_bytes * rows)
            assert terms.bytes <= budget

    def test_a_server_that_takes_over_counts_on_what_the_other_one_leaves(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.footprint(path)
        self.free = 0
        left = int((found.weights + found.row_bytes * MOST) / SHARE) + 2
        for module in (memory_plan, context_choice):
            monkeypatch.setattr(
                module, "leaving_bytes", lambda *processes: left if processes == (77, os.getpid()) else 0
            )
            monkeypatch.setattr(module, "spare_bytes", lambda: 0)
        several = toml(f'path = "{path}"\nname = "a"', rest='backend = "iree"\nmax_batch_size = 1')
        Path("baton.toml").unlink()
        one = load({"backend": "iree", "model": str(path), "max_batch_size": 1})
        for settings in (several, one):
            served = ServedModels.of(settings, predecessor=77)
            assert [(each.chosen_context, each.predecessor) for each in specs(served)] == [(MOST, 77)]
