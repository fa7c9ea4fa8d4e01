"""Safe typed encoding: plain data and tensors to bytes and back, without pickle; nothing in the bytes is ever executed.

Used for objects exchanged between ranks and for the files of a checkpoint. The bytes are a safetensors blob, whose
tensors any safetensors reader lists; the entry `accel.tree` holds a JSON tree of what is not a tensor. This file owns
the format; `accel._checkpoint` owns files and directories.

What is carried, and how it comes back:

- None, bool, int of any size, float with nan and infinities, str, bytes, list, tuple, torch.Size, torch.dtype,
  collections.Counter: as they are. Subclasses of int, float, str, bytes, list and dict come back as the plain type.
- dict with str or int keys: dict; the OrderedDict of `Module.state_dict()` keeps its `_metadata` (module versions).
- torch.device: its string, because the reading process may lack the vendor's plug-in.
- torch.Tensor: detached, on CPU, contiguous, a plain `torch.Tensor` whatever the subclass. The same view of the same
  storage (tied weights) is stored once and comes back as one object; other overlapping views come back independent.
- numpy array of numbers: numpy array. numpy scalar: the plain number.

Everything else raises `EncodingError`, which names the path of the object, before any byte exists.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from accel.errors import EncodingError

Tree = Any  # what json.dumps takes

_FORMAT = 1
_TREE_KEY = "accel.tree"
_TAG = "$"
_MAX_DEPTH = 100  # containers inside containers; JSON needs up to three levels for one, Python's parser stops near 1000
_SMALL_INT = 2**63  # larger ints go as hexadecimal text: Python limits the digits of decimal text
_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
# Carried as they are by every safetensors release we allow (>= 0.5); other dtypes travel as their bytes.
_CARRIED = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
})  # fmt: skip
_NUMPY_KINDS = "biufc"  # bool, int, unsigned, float, complex


def encode(obj: Any, where: str = "object") -> bytes:
    """Bytes from which `decode` rebuilds `obj`. `where` names `obj` in errors. Raises `EncodingError`."""
    return pack(*flatten(obj, where))


def decode(data: bytes) -> Any:
    """What `encode` was given. Raises `EncodingError` for truncated, foreign, damaged or newer `data`."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(bytes(tensors.pop(_TREE_KEY).numpy()), parse_constant=_refuse_constant)
        version, tree = header["format"], header["tree"]
    except KeyError as exc:
        raise EncodingError(f"encoded data lacks {exc}: it was not written by accel, or is of a newer format") from exc
    except (SafetensorError, AssertionError, ValueError, TypeError, RuntimeError) as exc:
        raise EncodingError(f"encoded data is truncated, damaged or not written by accel: {exc}") from exc
    if version != _FORMAT:
        raise EncodingError(
            f"encoded data has format {version!r}, this accel reads {_FORMAT}; upgrade accel to read it"
        )
    return unflatten(tree, tensors)


def flatten(obj: Any, where: str = "object") -> tuple[Tree, dict[str, torch.Tensor]]:
    """A JSON tree and the CPU tensors it refers to, which may share memory with `obj`. Raises `EncodingError`."""
    flattener = _Flattener(where)
    return flattener.node(obj, ()), flattener.tensors


def pack(tree: Tree, tensors: dict[str, torch.Tensor]) -> bytes:
    """The bytes form of what `flatten` returned."""
    text = json.dumps({"format": _FORMAT, "tree": tree}, allow_nan=False, separators=(",", ":")).encode("ascii")
    entries = {**tensors, _TREE_KEY: torch.frombuffer(bytearray(text), dtype=torch.uint8)}
    try:
        return safetensors.torch.save(entries)
    except SafetensorError as exc:  # its header of names and shapes is limited to 100 MB
        raise EncodingError(
            f"{len(tensors)} tensors do not fit one safetensors blob ({exc}); use fewer tensors"
        ) from exc


def unflatten(tree: Tree, tensors: dict[str, torch.Tensor]) -> Any:
    """The object that `flatten` was given. Raises `EncodingError` for a tree that `flatten` cannot have made."""
    try:
        return _Unflattener(tensors).node(tree)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as exc:  # RuntimeError: RecursionError too
        raise EncodingError(f"encoded data is damaged or not written by accel: {type(exc).__name__}: {exc}") from exc


Path = tuple[Any, ...]


class _Flattener:
    """One pass over an object: collects tensors under readable names and refuses what cannot be carried."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[object, str] = {}  # identity of a tensor's memory -> its name
        self._storages: set[int] = set()  # CPU storages in `tensors`: safetensors takes each only once
        self._alive: list[torch.Tensor] = []  # keeps addresses in `_names` from being used again
        self._open: set[int] = set()  # containers around the current object

    def node(self, obj: Any, path: Path) -> Tree:
        if isinstance(obj, np.generic):
            obj = self._number(obj, path)
        if obj is None or isinstance(obj, bool):
            return obj
        if isinstance(obj, int):
            return int(obj) if -_SMALL_INT <= obj < _SMALL_INT else {_TAG: "int", "hex": hex(obj)}
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {_TAG: "float", "text": repr(float(obj))}
        if isinstance(obj, str):
            return str(obj)
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj, path)
        if isinstance(obj, (dict, list, tuple)):
            return self._container(obj, path)
        if type(obj) is np.ndarray:
            return self._array(obj, path)
        if isinstance(obj, bytes):
            raw = torch.frombuffer(bytearray(obj), dtype=torch.uint8) if obj else torch.empty(0, dtype=torch.uint8)
            return {_TAG: "bytes", "key": self._store(raw, path)}
        if isinstance(obj, torch.dtype):
            return {_TAG: "dtype", "name": str(obj).removeprefix("torch.")}
        if isinstance(obj, torch.device):
            return str(obj)
        raise self._refusal(path, type(obj).__name__)

    def _container(self, obj: Any, path: Path) -> Tree:
        if id(obj) in self._open:
            raise self._refusal(path, f"{type(obj).__name__} that contains itself")
        if len(path) >= _MAX_DEPTH:
            raise self._refusal(path, f"{type(obj).__name__} nested more than {_MAX_DEPTH} deep")
        self._open.add(id(obj))
        try:
            if isinstance(obj, dict):
                return self._dict(obj, path)
            items = [self.node(item, (*path, index)) for index, item in enumerate(obj)]
        finally:
            self._open.discard(id(obj))
        if isinstance(obj, list):
            return items
        if isinstance(obj, torch.Size):
            return {_TAG: "size", "items": items}
        if type(obj) is tuple:
            return {_TAG: "tuple", "items": items}
        raise self._refusal(path, f"{type(obj).__name__} (a tuple subclass, which would lose its names: pass tuple(x))")

    def _dict(self, obj: dict[Any, Any], path: Path) -> Tree:
        for key in obj:
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise self._refusal(path, f"dict key {key!r} of type {type(key).__name__} (keys are str or int)")
        metadata = getattr(obj, "_metadata", None) if isinstance(obj, OrderedDict) else None
        plain = all(isinstance(key, str) for key in obj) and _TAG not in obj
        if plain and metadata is None and not isinstance(obj, Counter):
            return {str(key): self.node(value, (*path, key)) for key, value in obj.items()}
        items = [[self.node(key, path), self.node(value, (*path, key))] for key, value in obj.items()]
        if isinstance(obj, Counter):
            return {_TAG: "counter", "items": items}
        if metadata is not None:
            return {_TAG: "state_dict", "items": items, "metadata": self.node(dict(metadata), (*path, "_metadata"))}
        return {_TAG: "dict", "items": items}

    def _number(self, obj: np.generic, path: Path) -> bool | int | float | str | bytes:
        value = obj.item()
        if not isinstance(value, (bool, int, float, str, bytes)) or obj.dtype.kind not in "biufUS":
            raise self._refusal(path, f"numpy {obj.dtype}")
        return value

    def _array(self, obj: np.ndarray[Any, Any], path: Path) -> Tree:
        if obj.dtype.kind not in _NUMPY_KINDS:
            raise self._refusal(path, f"numpy array of {obj.dtype}")
        try:  # a fresh copy: native byte order, row-major and writable, as torch asks for
            tensor = torch.from_numpy(np.array(obj, dtype=obj.dtype.newbyteorder("="), order="C"))
        except TypeError as exc:  # float128
            raise self._refusal(path, f"numpy array of {obj.dtype}") from exc
        return {**self._tensor(tensor, path), _TAG: "numpy"}

    def _tensor(self, obj: torch.Tensor, path: Path) -> dict[str, Any]:
        if obj.layout is not torch.strided or obj.is_quantized:
            kind = "quantized" if obj.is_quantized else str(obj.layout)
            raise self._refusal(path, f"{kind} tensor (convert it to a dense one)")
        if obj.device.type == "meta" or torch.nn.parameter.is_lazy(obj):
            raise self._refusal(
                path, "tensor without values (on the meta device, or of a lazy module before its first call)"
            )
        try:
            with torch._C.DisableTorchFunctionSubclass():
                plain = obj.detach()
                if type(plain) is not torch.Tensor:
                    plain = plain.as_subclass(torch.Tensor)
        except (RuntimeError, ValueError, TypeError) as exc:
            raise self._refusal(path, f"{type(obj).__name__} that cannot be read ({exc})") from exc
        if type(plain) is not torch.Tensor:  # the class has no memory of its own: DTensor, quantised weights
            raise self._refusal(path, f"{type(obj).__name__} (a tensor made of tensors: gather or convert it first)")
        dtype = str(plain.dtype).removeprefix("torch.")
        identity = _identity(plain)
        key = self._names.get(identity)
        if key is None:
            self._alive.append(plain)
            data = plain.cpu().contiguous().resolve_conj().resolve_neg()
            if data.dtype not in _CARRIED:
                # Viewing as bytes asks for a stride of 1, which a contiguous tensor of one or no element may lack.
                data = data.reshape(-1).as_strided((data.numel(),), (1,)).view(torch.uint8)
            key = self._names[identity] = self._store(data, path)
        if plain.dtype in _CARRIED:
            return {_TAG: "tensor", "key": key}
        return {_TAG: "tensor", "key": key, "dtype": dtype, "shape": list(plain.shape)}

    def _store(self, data: torch.Tensor, path: Path) -> str:
        name = base = ".".join(str(part) for part in path).encode("utf-8", "backslashreplace").decode() or "tensor"
        number = 1
        while name in self.tensors or name in (_TREE_KEY, "__metadata__"):  # the latter is safetensors' own
            number += 1
            name = f"{base}#{number}"
        storage = data.untyped_storage().data_ptr()
        if storage in self._storages:
            data = data.clone()
        self._storages.add(storage)
        self.tensors[name] = data
        return name

    def _refusal(self, path: Path, found: str) -> EncodingError:
        where = self.where + "".join(f"[{part!r}]" for part in path)
        return EncodingError(f"{where}: {found} cannot be encoded; only plain data, tensors and numpy arrays can")


def _identity(tensor: torch.Tensor) -> object:
    """Equal for two tensors exactly when they are the same view of the same memory."""
    if tensor.numel() == 0:
        return id(tensor)  # all empty tensors have address 0
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)  # lazy tensors have no storage to compare
    if address == 0:
        return id(tensor)
    view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (str(tensor.device), address, tensor.dtype, *view)


class _Unflattener:
    """One pass over a tree; a malformed node raises a built-in error that `unflatten` turns into an `EncodingError`."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._views: dict[str, torch.Tensor] = {}  # keeps tied tensors of byte-carried dtypes one object

    def node(self, tree: Tree) -> Any:
        if isinstance(tree, list):
            return [self.node(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if _TAG not in tree:
            return {key: self.node(value) for key, value in tree.items()}
        return getattr(self, f"_{_known(tree[_TAG], _TAGS)}")(tree)

    def _tuple(self, tree: Tree) -> tuple[Any, ...]:
        return tuple(self.node(item) for item in tree["items"])

    def _size(self, tree: Tree) -> torch.Size:
        return torch.Size(tree["items"])

    def _dict(self, tree: Tree) -> dict[Any, Any]:
        return {self.node(key): self.node(value) for key, value in tree["items"]}

    def _counter(self, tree: Tree) -> Counter[Any]:
        return Counter(self._dict(tree))

    def _state_dict(self, tree: Tree) -> OrderedDict[Any, Any]:
        state = OrderedDict((self.node(key), self.node(value)) for key, value in tree["items"])
        state._metadata = OrderedDict(self.node(tree["metadata"]))  # type: ignore[attr-defined] # as Module.state_dict does
        return state

    def _int(self, tree: Tree) -> int:
        return int(tree["hex"], 16)

    def _float(self, tree: Tree) -> float:
        return float(_known(tree["text"], ("nan", "inf", "-inf")))

    def _bytes(self, tree: Tree) -> bytes:
        return bytes(self._tensors[tree["key"]].numpy())

    def _dtype(self, tree: Tree) -> torch.dtype:
        return _DTYPES[_known(tree["name"], _DTYPES)]

    def _numpy(self, tree: Tree) -> np.ndarray[Any, Any]:
        return self._tensor(tree).numpy()

    def _tensor(self, tree: Tree) -> torch.Tensor:
        key = tree["key"]
        if "dtype" not in tree:
            return self._tensors[key]
        if key not in self._views:  # the copy aligns the bytes for wide dtypes
            dtype = _DTYPES[_known(tree["dtype"], _DTYPES)]
            self._views[key] = self._tensors[key].clone().view(dtype).reshape(tree["shape"])
        return self._views[key]


_TAGS = ("tuple", "size", "dict", "counter", "state_dict", "int", "float", "bytes", "dtype", "numpy", "tensor")


def _known(name: Any, names: Iterable[str]) -> str:
    if name not in names:
        raise ValueError(f"unknown name {name!r}")
    return str(name)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
