"""What a worker's next life is told, and only that one."""

import json
from pathlib import Path

from cli.chaos.told import Told
from cli.model import ChosenModel
from cli.settings import Settings
from workers.__main__ import decode_spec
from workers.faults import Fault


def test_a_fault_is_for_one_life_of_one_worker(tmp_path: Path) -> None:
    told = Told(tmp_path)
    assert told.take("w0") == ()
    told.tell("w0", Fault("raise", 7))
    told.tell("w0", Fault("nan", 8))
    assert told.take("w1") == ()
    assert told.take("w0") == (Fault("nan", 8),)
    assert told.take("w0") == ()
    assert list(tmp_path.iterdir()) == []


def test_each_start_of_a_worker_looks_what_it_is_told(tmp_path: Path) -> None:
    told = Told(tmp_path)
    settings = Settings(backend="scripted", workers=2)
    launches = told.launches(settings, ChosenModel.choose(settings))
    assert [launch.name for launch in launches] == ["w0", "w1"]
    told.tell("w1", Fault("hang", 3))
    specs = [decode_spec(list(launch.command("ipc://x", 1))[-1]) for launch in launches]
    assert [spec.faults for spec in specs] == [(), (Fault("hang", 3),)]
    assert json.loads(list(launches[1].command("ipc://x", 2))[-1])["faults"] == []
