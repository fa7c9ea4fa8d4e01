"""The manifest of a checkpoint directory: what the files are, their checksums, and whether the directory is complete.

    NAME/manifest.json              schema version, versions of accel and torch, time, meta; each file's size and sha256
    NAME/objects/OBJECT.safetensors one file an object, in the form of `accel._codec`
    NAME/ranks/RANK.safetensors     one file a rank: its random numbers and loader position
    NAME/COMPLETE                   sha256 of manifest.json, written last

`accel._checkpoint` writes and reads the other files.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import accel
from accel._atomic_dir import write_file
from accel._codec import unflatten
from accel.errors import CheckpointError, EncodingError

SCHEMA = "accel.checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
MARKER = "COMPLETE"
FOLDERS = ("objects", "ranks")
OBJECT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")  # a file name on every file system
_FILE = re.compile(rf"objects/({OBJECT_NAME.pattern})\.safetensors|ranks/(0|[1-9][0-9]{{0,8}})\.safetensors")


def object_file(name: str) -> str:
    return f"objects/{name}.safetensors"


def rank_file(rank: int) -> str:
    return f"ranks/{rank}.safetensors"


def owner(file: str) -> str | int:
    """The object's name or the rank that `file`, a name in a checked manifest, belongs to."""
    match = _FILE.fullmatch(file)
    if match is None:
        raise ValueError(f"unknown file {file!r}")
    return match[1] if match[2] is None else int(match[2])


def entry(data: bytes) -> dict[str, Any]:
    """What the manifest says of a file that holds `data`."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def finish(directory: Path, files: Mapping[str, dict[str, Any]], meta_tree: Any) -> None:
    """Write manifest and marker, after which `directory` is complete. `files` maps names to their `entry`."""
    now = time.time_ns()
    manifest = {
        "schema": SCHEMA,
        "version": VERSION,
        "accel": accel.__version__,
        "torch": str(torch.__version__),
        "saved": datetime.fromtimestamp(now / 1e9, timezone.utc).isoformat(timespec="seconds"),
        "saved_ns": now,
        "meta": meta_tree,
        "files": dict(files),
    }
    data = json.dumps(manifest, indent=1, allow_nan=False).encode("ascii")
    write_file(directory / MANIFEST, data)
    write_file(directory / MARKER, entry(data)["sha256"].encode("ascii") + b"\n")


def verified(directory: Path) -> dict[str, Any]:
    """The manifest, its checksum, schema and entries found right, with `meta` decoded. Raises `CheckpointError`."""
    file = directory / MANIFEST
    data = read_bytes(file)
    manifest = parse(data, file)
    marker = directory / MARKER
    if not marker.exists():
        raise CheckpointError(
            f"{directory} is incomplete: it lacks {MARKER}, which is written last; use an earlier checkpoint"
        )
    if read_bytes(marker).strip() != entry(data)["sha256"].encode("ascii"):
        raise CheckpointError(f"{file} is damaged: its checksum is not the one in {MARKER}; use an earlier checkpoint")
    if manifest["version"] > VERSION:
        raise CheckpointError(
            f"{file} has schema version {manifest['version']}, written by accel {manifest.get('accel')}; "
            f"this accel {accel.__version__} reads up to version {VERSION}: upgrade accel"
        )
    try:
        manifest["meta"] = unflatten(manifest["meta"], {})
        for name, facts in manifest["files"].items():
            owner(name)
            if not isinstance(facts["bytes"], int) or not isinstance(facts["sha256"], str):
                raise TypeError(f"entry of {name!r} is malformed")
        if not isinstance(manifest["accel"], str) or not isinstance(manifest["torch"], str):
            raise TypeError("versions are malformed")
    except (EncodingError, LookupError, TypeError, ValueError) as exc:
        raise CheckpointError(f"{file} is not as accel writes it ({exc}); use an earlier checkpoint") from exc
    return manifest


def complete(directory: Path) -> dict[str, Any] | None:
    """The manifest when `directory` has all that a save writes, else None. Sizes are compared, contents are not."""
    try:
        data = read_bytes(directory / MANIFEST)
        if read_bytes(directory / MARKER).strip() != entry(data)["sha256"].encode("ascii"):
            return None
        manifest = parse(data, directory / MANIFEST)
        if manifest["version"] <= VERSION:
            for name, facts in manifest["files"].items():
                if (directory / name).stat().st_size != facts["bytes"]:
                    return None
    except (CheckpointError, OSError, LookupError, TypeError):
        return None
    return manifest


def parse(data: bytes, file: Path) -> dict[str, Any]:
    """`data` of `file` as a manifest of some version. Raises `CheckpointError` when it is foreign or truncated."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{file} is truncated or not JSON ({exc}); use an earlier checkpoint") from exc
    kinds = {"schema": str, "version": int, "saved_ns": int, "files": dict}
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise CheckpointError(f"{file} is not of a checkpoint of accel: it lacks schema {SCHEMA!r}")
    wrong = [key for key, kind in kinds.items() if not isinstance(manifest.get(key), kind)]
    if wrong:
        raise CheckpointError(f"{file} is not as accel writes it: {wrong[0]!r} is {manifest.get(wrong[0])!r}")
    return manifest


def read_bytes(file: Path) -> bytes:
    """All of `file`. Raises `CheckpointError`."""
    try:
        return file.read_bytes()
    except FileNotFoundError as exc:
        raise CheckpointError(
            f"{file} is missing: {file.parent} is no complete checkpoint of accel; use another checkpoint"
        ) from exc
    except OSError as exc:
        raise CheckpointError(f"{file} cannot be read ({exc}); check permissions and the disk") from exc
