"""Changes of the file of API keys: by one process, by several, and by one that fails."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.keys import key_file
from gateway.keys.key_file import MAX_FILE_BYTES, MAX_KEYS, ApiKeysInvalid, KeyFile
from gateway.keys.record import MAX_LIMIT, MAX_MODELS, KeyLimits, KeyRecord, make_key, make_record

ROOT = Path(__file__).parents[3]
DIGEST = "0" * 64
CREATED = '"created":"2030-01-01T00:00:00Z"'


def record(name: str) -> KeyRecord:
    return make_record(name, make_key(), KeyLimits())


def written(folder: Path, text: str, mode: int = 0o600) -> KeyFile:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return KeyFile(path)


def test_records_are_added_changed_and_removed_beside_what_a_person_wrote(tmp_path: Path) -> None:
    file = written(tmp_path, "# teams\nbob:b\n\nbob:c\ncarol:d", 0o640)
    alice, dora = record("alice"), record("dora")
    file.add(alice)
    file.add(dora)
    changed = file.change("alice", lambda each: make_record("alice", "k", KeyLimits(max_concurrent=1)))
    file.remove("bob")
    assert file.path.read_text() == f"# teams\n\ncarol:d\n{dora.line()}\n{changed.line()}\n"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_new_file_is_its_owners_alone_and_has_no_key(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    key = make_key()
    before = os.umask(0)
    try:
        file.add(make_record("alice", key, KeyLimits()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert key.removeprefix("sk-baton-") not in file.path.read_text()


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    file = written(tmp_path, "bob:b\n")
    link = tmp_path / "link"
    link.symlink_to(file.path)
    KeyFile(link).remove("bob")
    assert link.is_symlink()
    assert file.path.read_text() == "\n"


def test_a_link_that_leads_elsewhere_meanwhile_changes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = written(tmp_path, "bob:b\n"), tmp_path / "other"
    other.write_text("bob:c\ncarol:d\n")
    other.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file.path)
    lock = key_file._lock

    def lock_and_lead_elsewhere(descriptor: int, path: Path) -> bool:
        link.unlink()
        link.symlink_to(other)
        return lock(descriptor, path)

    monkeypatch.setattr(key_file, "_lock", lock_and_lead_elsewhere)
    KeyFile(link).remove("bob")
    assert (file.path.read_text(), other.read_text()) == ("\n", "bob:c\ncarol:d\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "the record is not valid"),
        (f'{{"name":"a","sha256":"{DIGEST}"}}', "required field `created`"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"key":"k"}}', "unknown field `key`"),
        (f'{{"name":"a","sha256":"{DIGEST}0",{CREATED}}}', "`[$].sha256`"),
        (f'{{"name":"a","sha256":"{DIGEST[:-1]}G",{CREATED}}}', "`[$].sha256`"),
        (f'{{"name":"a","sha256":"{DIGEST}","created":"2030-01-01T00:00:00"}}', "`[$].created`"),
        (f'{{"name":"-","sha256":"{DIGEST}",{CREATED}}}', "the name is not"),
        (f'{{"name":"admin","sha256":"{DIGEST}",{CREATED}}}', "a key of the settings"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"limits":{{"max_concurrent":0}}}}', "max_concurrent"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"limits":{{"tokens_per_minute":{MAX_LIMIT + 1}}}}}', "tokens_p"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"limits":{{"models":{["m"] * (MAX_MODELS + 1)}}}}}', "not valid"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"limits":{{"priority":"urgent"}}}}', "priority"),
        (f'{{"name":"a","sha256":"{DIGEST}",{CREATED},"admin":true,"limits":{{"max_concurrent":1}}}}', "no limits but"),
    ],
)
def test_an_invalid_record_is_refused_by_its_line_and_field(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ApiKeysInvalid, match=f"line 2: .*{words}"):
        written(tmp_path, f"bob:b\n{line}\n").read()


def test_the_largest_limits_are_valid(tmp_path: Path) -> None:
    limits = KeyLimits(tokens_per_minute=MAX_LIMIT, models=tuple(f"m{number}" for number in range(MAX_MODELS)))
    file = KeyFile(tmp_path / "keys")
    file.add(make_record("alice", make_key(), limits))
    (line,) = file.read()
    assert line.record is not None
    assert line.record.limits == limits


def test_a_name_of_a_record_has_one_key(tmp_path: Path) -> None:
    file = written(tmp_path, "bob:b\n")
    for _ in range(2):
        with pytest.raises(ApiKeysInvalid, match="has a key of 'bob'"):
            file.add(record("bob"))
    for text in (f"bob:b\n{record('bob').line()}", f"{record('bob').line()}\nbob:b"):
        with pytest.raises(ApiKeysInvalid, match="line 2: 'bob' has a key on line 1"):
            written(tmp_path, text).read()


def test_a_key_without_a_record_has_no_limits(tmp_path: Path) -> None:
    file = written(tmp_path, "bob:b\n")
    with pytest.raises(ApiKeysInvalid, match="line 1: only keys of `baton keys create`"):
        file.change("bob", lambda each: each)
    for change in (file.remove, lambda name: file.change(name, lambda each: each)):
        with pytest.raises(ApiKeysInvalid, match="no key of 'alice'"):
            change("alice")


def test_the_bounds_hold_for_what_is_written(tmp_path: Path) -> None:
    text = "".join(f"a:{number}\n" for number in range(MAX_KEYS - 1))
    file = written(tmp_path, text)
    file.add(record("last"))
    with pytest.raises(ApiKeysInvalid, match=f"more than {MAX_KEYS} keys"):
        file.add(record("more"))
    line = record("alice").line()
    file = written(tmp_path, "#" * (MAX_FILE_BYTES - len(line) - 2) + "\n")
    file.add(record("alice"))
    assert file.path.stat().st_size == MAX_FILE_BYTES
    file = written(tmp_path, "#" * (MAX_FILE_BYTES - len(line) - 1) + "\n")
    with pytest.raises(ApiKeysInvalid, match=f"over the bound of {MAX_FILE_BYTES} bytes"):
        file.add(record("alice"))


def test_a_file_that_is_invalid_or_open_to_others_is_not_changed(tmp_path: Path) -> None:
    for text, mode, words in (("nonsense\n", 0o600, "line 1"), ("bob:b\n", 0o644, "open to others")):
        file = written(tmp_path, text, mode)
        with pytest.raises(ApiKeysInvalid, match=words):
            file.add(record("alice"))
        assert file.path.read_text() == text


def test_a_write_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "bob:b\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ApiKeysInvalid, match="cannot be written: No space left on device"):
        file.add(record("alice"))
    assert file.path.read_text() == "bob:b\n"
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_process_that_keeps_the_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "LOCK_S", 0.0)
    file = written(tmp_path, "bob:b\n")
    with file.path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ApiKeysInvalid, match="is being changed by another process"):
            file.remove("bob")
    file.remove("bob")


PROGRAM = """
import sys
from pathlib import Path
from gateway.keys.key_file import KeyFile
from gateway.keys.record import KeyLimits, make_key, make_record
for number in range(20):
    KeyFile(Path(sys.argv[1])).add(make_record(f"{sys.argv[2]}{number}", make_key(), KeyLimits()))
"""


def test_writers_in_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    writers = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), name], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    ends = [(writer.communicate()[1], writer.returncode) for writer in writers]
    assert ends == [("", 0)] * len(writers)
    assert sorted(line.name for line in KeyFile(path).read()) == sorted(f"{w}{n}" for w in "abc" for n in range(20))
