"""`accel._checkpoint`: complete or absent, nothing of others deleted, nothing damaged believed."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel import _atomic_dir, _checkpoint, _manifest
from accel._checkpoint import check_writable, latest, read, save
from accel._state import state_of
from accel.errors import ArgumentError, CheckpointError, EncodingError


def put(path: Path, value: int) -> None:
    """A small checkpoint in which everything says `value`."""
    objects = {"model": {"weight": torch.full((4,), float(value))}, "step": value}
    save(path, objects, ranks={0: {"position": value}, 1: {"position": value}}, meta={"world_size": 2, "value": value})


def got(path: Path) -> int:
    """The value of a checkpoint made by `put`, after checking that all its parts say the same."""
    back = read(path)
    value: int = back.objects["step"]
    assert torch.equal(back.objects["model"]["weight"], torch.full((4,), float(value)))
    assert back.ranks == {0: {"position": value}, 1: {"position": value}}
    assert back.meta == {"world_size": 2, "value": value}
    return value


def fresh_environment() -> dict[str, str]:
    """For a new process that imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_round_trip_and_layout(tmp_path: Path) -> None:
    put(tmp_path / "new" / "last", 1)
    assert got(tmp_path / "new" / "last") == 1
    files = sorted(str(f.relative_to(tmp_path / "new")) for f in (tmp_path / "new").rglob("*") if f.is_file())
    assert files == [
        "last/COMPLETE",
        "last/manifest.json",
        "last/objects/model.safetensors",
        "last/objects/step.safetensors",
        "last/ranks/0.safetensors",
        "last/ranks/1.safetensors",
    ]
    manifest = json.loads((tmp_path / "new/last/manifest.json").read_text())
    assert manifest["torch"] == str(torch.__version__)
    assert manifest["meta"] == {"world_size": 2, "value": 1}


def test_overwriting_leaves_the_new_one_alone(tmp_path: Path) -> None:
    for value in range(3):
        put(tmp_path / "last", value)
        assert got(tmp_path / "last") == value
    assert names(tmp_path) == ["last"]


def test_links_and_relative_paths_lead_to_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("step1"), 1)
    Path("last").symlink_to("step1")
    put(Path("last"), 2)
    assert Path("last").is_symlink()
    assert got(Path("step1")) == got(Path("last")) == 2


def test_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    put(tmp_path / "last", 1)
    assert got(tmp_path / "last") == 1


# --- bad input


def test_directory_of_others_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"data holds files but no checkpoint of accel; nothing was deleted"):
        put(tmp_path / "data", 1)
    assert (tmp_path / "data/deep/thesis.txt").read_text() == "mine"
    assert names(tmp_path) == ["data"]
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        read(tmp_path / "data")


def test_manifest_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(CheckpointError, match="no checkpoint of accel"):
        put(tmp_path / "app", 1)
    with pytest.raises(CheckpointError, match=r"manifest\.json is not of a checkpoint of accel"):
        read(tmp_path / "app")


@pytest.mark.parametrize("extra", ["notes.txt", "objects/notes.txt", "link"])
def test_files_of_others_in_a_checkpoint_stop_overwriting(tmp_path: Path, extra: str) -> None:
    put(tmp_path / "last", 1)
    file = tmp_path / "last" / extra
    file.symlink_to(tmp_path) if extra == "link" else file.write_text("mine")
    with pytest.raises(CheckpointError, match=f"holds '{extra}' beside its checkpoint"):
        put(tmp_path / "last", 2)
    assert os.path.lexists(file)
    assert got(tmp_path / "last") == 1


def test_file_at_path(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("mine")
    with pytest.raises(CheckpointError, match="last is a file"):
        put(tmp_path / "last", 1)
    with pytest.raises(CheckpointError, match="last is not a directory"):
        read(tmp_path / "last")
    with pytest.raises(CheckpointError, match="saving to .*last/below failed"):
        put(tmp_path / "last" / "below", 1)
    with pytest.raises(CheckpointError, match="there is no checkpoint at .*last/below"):
        read(tmp_path / "last" / "below")
    with pytest.raises(CheckpointError, match="cannot be searched"):
        latest(tmp_path / "last")
    assert (tmp_path / "last").read_text() == "mine"


@pytest.mark.parametrize("path", ["/proc/accel/last", "/proc/last"])
def test_unwritable_parent(path: str) -> None:
    with pytest.raises(CheckpointError, match=f"saving to {path} failed"):
        put(Path(path), 1)


def test_a_path_is_checked_before_the_work_starts(tmp_path: Path) -> None:
    """The same refusals as of `save`, as bad arguments, and nothing is made."""
    check_writable(tmp_path / "new" / "last")
    assert names(tmp_path) == []
    put(tmp_path / "last", 1)
    check_writable(tmp_path / "last")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("mine")
    for path, message in {
        "file": "file is a file, not a directory",
        "file/below/last": "last cannot be made, since .*file is a file",
        "data": "data holds files but no checkpoint of accel",
    }.items():
        with pytest.raises(ArgumentError, match=message):
            check_writable(tmp_path / path)


def test_absent_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at .*nowhere"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"objects": {"a/b": 1}}, ArgumentError, "'a/b' must be 1-100 letters"),
        ({"objects": {"..": 1}}, ArgumentError, "must be 1-100 letters"),
        ({"objects": {"": 1}}, ArgumentError, "must be 1-100 letters"),
        ({"objects": {"Model": 1, "model": 2}}, ArgumentError, "differ only in case"),
        ({"ranks": {-1: 1}}, ArgumentError, "rank -1 must be 0 or more"),
        ({"objects": {"fine": 1, "bad": {"f": [print]}}}, EncodingError, r"object\['bad'\]\['f'\]\[0\]"),
        ({"ranks": {0: {"f": print}}}, EncodingError, r"rank\[0\]\['f'\]"),
        ({"meta": {"f": print}}, EncodingError, r"meta\['f'\]"),
        ({"meta": {"t": torch.ones(1)}}, EncodingError, "meta: t is a tensor"),
    ],
)
def test_nothing_is_written_for_content_that_cannot_be_saved(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"objects": {"step": 1}, "ranks": {}, "meta": {}} | change
    with pytest.raises(error, match=message):
        save(tmp_path / "sub" / "last", **arguments)
    assert names(tmp_path) == []


# --- damage


def damage_truncate(path: Path) -> None:
    file = path / "objects/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    file = path / "ranks/1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_missing(path: Path) -> None:
    (path / "objects/step.safetensors").unlink()


def damage_manifest(path: Path) -> None:
    file = path / "manifest.json"
    file.write_bytes(file.read_bytes()[:50])


def damage_edit(path: Path) -> None:
    file = path / "manifest.json"
    file.write_text(file.read_text().replace('"world_size": 2', '"world_size": 4'))


def damage_marker(path: Path) -> None:
    (path / "COMPLETE").unlink()


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and sign it again, as another writer would."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    data = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "COMPLETE").write_text(hashlib.sha256(data).hexdigest())


def damage_future(path: Path) -> None:
    rewrite(path, lambda m: m.update(version=99, accel="9.0", files={"shards": {"new": "layout"}}))


def damage_escape(path: Path) -> None:
    rewrite(path, lambda m: m["files"].update({"../secret": {"bytes": 1, "sha256": ""}}))


def damage_no_sizes(path: Path) -> None:
    rewrite(path, lambda m: m["files"].update({"ranks/0.safetensors": {}}))


def damage_versions(path: Path) -> None:
    rewrite(path, lambda m: m.pop("torch"))


def damage_time(path: Path) -> None:
    rewrite(path, lambda m: m.update(saved_ns="yesterday"))


def damage_foreign_file(path: Path) -> None:
    data = b"\x80\x04K\x01."  # a pickle
    (path / "objects/step.safetensors").write_bytes(data)
    rewrite(path, lambda m: m["files"].update({"objects/step.safetensors": _manifest.entry(data)}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, r"objects/model\.safetensors is damaged: its \d+ bytes .* use an earlier checkpoint"),
        (damage_flip, r"ranks/1\.safetensors is damaged"),
        (damage_missing, r"objects/step\.safetensors is missing"),
        (damage_manifest, r"manifest\.json is truncated or not JSON"),
        (damage_edit, r"manifest\.json is damaged: its checksum"),
        (damage_marker, r"last is incomplete: it lacks COMPLETE"),
        (damage_future, r"schema version 99, written by accel 9\.0; .* upgrade accel"),
        (damage_escape, r"manifest\.json is not as accel writes it .*\.\./secret"),
        (damage_no_sizes, r"manifest\.json is not as accel writes it"),
        (damage_versions, r"manifest\.json is not as accel writes it"),
        (damage_time, r"manifest\.json is not as accel writes it: 'saved_ns' is 'yesterday'"),
        (damage_foreign_file, r"objects/step\.safetensors cannot be decoded"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    put(tmp_path / "last", 1)
    damage(tmp_path / "last")
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "last")


# --- interruption


class Failing:
    """Stands in for a system call: works `good` times, then raises."""

    def __init__(self, call: Callable[..., Any], good: int, error: BaseException) -> None:
        self.call = call
        self.left = good
        self.error = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.call(*args, **kwargs)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("good", range(11))  # 6 files, then 4 directories, are synced
def test_failing_writer_leaves_the_previous_one_intact(  # T56
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int, error: BaseException
) -> None:
    put(tmp_path / "last", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Failing(os.fsync, good, error))
        if good == 10:
            put(tmp_path / "last", 2)
        else:
            expected = CheckpointError if isinstance(error, OSError) else type(error)
            with pytest.raises(expected) as caught:
                put(tmp_path / "last", 2)
            if isinstance(error, OSError):
                assert "No space left on device" in str(caught.value)
                assert str(tmp_path / "last") in str(caught.value)
    if good < 9:
        assert names(tmp_path) == ["last"]
        assert got(tmp_path / "last") == 1
    else:  # the new one is in place, only the parent's entry may not have reached the disk
        assert got(tmp_path / "last") == 2
    put(tmp_path / "last", 3)
    assert names(tmp_path) == ["last"]


@pytest.mark.parametrize("good", [0, 1])
def test_failing_rename_leaves_the_previous_one_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    put(tmp_path / "last", 1)
    calls: list[int] = []
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        calls.append(1)
        if len(calls) == good + 1:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(CheckpointError, match="Input/output error"):
            put(tmp_path / "last", 2)
    assert names(tmp_path) == ["last"]
    assert got(tmp_path / "last") == 1


def test_real_disk_full(tmp_path: Path) -> None:  # T56
    """A file size limit fails the write itself, half-way, as a full disk does."""
    put(tmp_path / "last", 1)
    script = """
        import resource, signal, sys, torch
        from accel._checkpoint import save
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        from accel.errors import CheckpointError
        try:
            save(sys.argv[1], {"step": 2, "model": torch.ones(1_000_000)}, ranks={}, meta={})
        except CheckpointError as exc:
            print(exc)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "last")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=fresh_environment(), check=False)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "last failed ([Errno 27] File too large" in out
    assert names(tmp_path) == ["last"]
    assert got(tmp_path / "last") == 1


def leave(path: Path, kind: str, value: int | None) -> Path:
    """A sibling as a killed save leaves it: complete with `value`, or partial when None."""
    sibling = path.with_name(f".{path.name}.{kind}-{random.randbytes(6).hex()}")
    put(sibling, value or 0)
    if value is None:
        (sibling / "COMPLETE").unlink()
    return sibling


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ({"old": 1}, 1),
        ({"old": 1, "new": None}, 1),
        ({"old": 1, "new": 2}, 2),
        ({"new": 2}, 2),
    ],
)
def test_what_a_killed_save_left_is_read_and_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, left: dict[str, int | None], expected: int
) -> None:
    for kind, value in left.items():
        leave(tmp_path / "last", kind, value)
    with caplog.at_level(logging.WARNING, logger="accel"):
        assert got(tmp_path / "last") == expected
    assert "a save was killed" in caplog.text
    assert latest(tmp_path) == tmp_path / "last"

    with pytest.raises(EncodingError):  # refused before anything is touched
        save(tmp_path / "last", {"f": print}, ranks={}, meta={})
    assert len(names(tmp_path)) == len(left)
    put(tmp_path / "last", 3)
    assert names(tmp_path) == ["last"]
    assert got(tmp_path / "last") == 3


def test_failing_save_puts_back_what_a_killed_save_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path / "last", "old", 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Failing(os.fsync, 2, OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(CheckpointError, match="No space left"):
            put(tmp_path / "last", 2)
    assert names(tmp_path) == ["last"]
    assert got(tmp_path / "last") == 1


def test_partial_remains_alone_are_no_checkpoint(tmp_path: Path) -> None:
    sibling = leave(tmp_path / "last", "new", None)
    with pytest.raises(CheckpointError, match=f"{sibling.name} beside it was left by an interrupted save"):
        read(tmp_path / "last")
    assert latest(tmp_path) is None
    put(tmp_path / "last", 1)
    assert names(tmp_path) == ["last"]


def test_only_remains_of_the_same_name_are_cleaned(tmp_path: Path) -> None:
    other = leave(tmp_path / "last2", "new", None)
    dotted = leave(tmp_path / "last.new-0123456789ab", "old", None)
    (tmp_path / ".last.new-mine").mkdir()
    put(tmp_path / "last", 1)
    assert names(tmp_path) == sorted([".last.new-mine", "last", other.name, dotted.name])


def test_undeletable_remains_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "last", 1)

    def refuse(path: Path, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="accel"):
        patch.setattr(_atomic_dir.shutil, "rmtree", refuse)
        put(tmp_path / "last", 2)
    assert "the next save tries again" in caplog.text
    assert got(tmp_path / "last") == 2
    put(tmp_path / "last", 3)
    assert names(tmp_path) == ["last"]


def test_checkpoint_replaced_while_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "last", 1)
    decode = _checkpoint.decode
    replaced: list[int] = []

    def replace_once(data: bytes) -> Any:
        if not replaced:
            replaced.append(1)
            put(tmp_path / "last", 2)
        return decode(data)

    monkeypatch.setattr(_checkpoint, "decode", replace_once)
    assert got(tmp_path / "last") == 2


def test_writers_racing_for_one_path_leave_one_whole_checkpoint(tmp_path: Path) -> None:  # T56
    put(tmp_path / "last", 0)
    errors: list[BaseException] = []

    def race(value: int) -> None:
        for _ in range(15):
            try:
                put(tmp_path / "last", value)
            except CheckpointError:
                pass  # one of two writers meets the other's renames
            except BaseException as exc:
                errors.append(exc)

    threads = [threading.Thread(target=race, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert got(tmp_path / "last") in (0, 1, 2)
    put(tmp_path / "last", 3)
    assert got(tmp_path / "last") == 3
    assert names(tmp_path) == ["last"]


# --- latest


def test_latest_is_the_newest_complete_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:  # T56
    assert latest(tmp_path / "nowhere") is None
    assert latest(tmp_path) is None
    for value, name in enumerate(["step-2", "step-10", "step-3"]):
        put(tmp_path / name, value)
    (tmp_path / "logs").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "best").symlink_to("step-2")
    assert latest(tmp_path) == tmp_path / "step-3"
    damage_marker(tmp_path / "step-3")
    leave(tmp_path / "step-4", "new", None)
    with caplog.at_level(logging.WARNING, logger="accel"):
        assert latest(str(tmp_path)) == tmp_path / "step-10"
    assert "step-3 is incomplete or damaged and is passed over" in caplog.text
    damage_truncate(tmp_path / "step-10")
    assert latest(tmp_path) == tmp_path / "step-2"
    assert got(tmp_path / "step-2") == 0


def test_latest_does_not_hide_a_checkpoint_of_a_newer_accel(tmp_path: Path) -> None:
    put(tmp_path / "a", 1)
    put(tmp_path / "b", 2)
    damage_future(tmp_path / "b")
    newest = latest(tmp_path)
    assert newest == tmp_path / "b"
    with pytest.raises(CheckpointError, match="upgrade accel"):
        read(newest)


# --- other machines


def test_loads_where_the_vendor_package_is_absent(tmp_path: Path) -> None:  # T51
    """Parameters, optimizer state and random state of a vendor's tensor class load in a process without that class."""
    vendor = tmp_path / "site" / "fake_vendor.py"
    vendor.parent.mkdir()
    vendor.write_text("import torch\n\nclass VendorTensor(torch.Tensor):\n    pass\n")
    sys.path.insert(0, str(vendor.parent))
    try:
        import fake_vendor  # type: ignore[import-not-found]

        model = nn.Linear(3, 2)
        for name in ("weight", "bias"):
            own = getattr(model, name).detach().as_subclass(fake_vendor.VendorTensor)
            setattr(model, name, nn.Parameter(own))
        assert type(model.weight.data) is fake_vendor.VendorTensor
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scaler = torch.amp.GradScaler("cpu")
        rng = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "vendor": torch.get_rng_state().as_subclass(fake_vendor.VendorTensor),
        }
        parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
        objects = {name: state_of(name, obj) for name, obj in parts.items()}
        save(tmp_path / "last", objects, ranks={0: rng}, meta={"device": torch.device("cuda", 1)})
    finally:
        sys.path.remove(str(vendor.parent))
        sys.modules.pop("fake_vendor", None)
    script = """
        import random, sys, torch
        from accel._checkpoint import read
        from accel._state import apply_states
        back = read(sys.argv[1])
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        apply_states({"model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu")}, back.objects)
        assert all(type(t) is torch.Tensor for t in back.objects["model"].values())
        assert all(type(t) is torch.Tensor for s in optimizer.state.values() for t in s.values())
        assert type(back.ranks[0]["vendor"]) is torch.Tensor
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert back.meta["device"] == "cuda:1"
        torch.set_rng_state(back.ranks[0]["torch"])
        random.setstate(back.ranks[0]["python"])
        assert "fake_vendor" not in sys.modules and "pickle" not in str(back.objects)
        print(model.weight.sum().item())
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), str(tmp_path / "last")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=fresh_environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model.weight.detach().sum().item())
