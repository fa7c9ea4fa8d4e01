"""`accel._codec`: what is carried comes back; what is not is refused by its path; damaged bytes give a typed error."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from accel._codec import decode, encode, flatten, unflatten
from accel.errors import EncodingError

DTYPES = [d for d in vars(torch).values() if isinstance(d, torch.dtype)]
EXOTIC = {"bits", "quint", "qint", "int1", "int2", "int3", "int4", "int5", "int6", "int7", "float4"}  # no dense values


def same(a: Any, b: Any) -> bool:
    """Equal in type and value all the way down; nan equals nan; tensors by their bytes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [t.reshape(-1).view(torch.uint8) for t in (a, b)] if a.numel() else [a, b]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and all(type(x) is type(y) for x, y in zip(a, b, strict=True))
            and all(same(a[k], b[k]) for k in a)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.copysign(1, a) == math.copysign(1, b) and a == b) or (a != a and b != b)
    return bool(a == b)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(
        st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16])
    )
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=20)
    | tensors()
    | tensors().filter(lambda t: t.dtype is not torch.bfloat16).map(lambda t: t.numpy())
    | st.sampled_from(DTYPES)
)
objects = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.just("$"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(objects)
@settings(max_examples=150, deadline=None)
def test_round_trip(obj: Any) -> None:
    assert same(decode(encode(obj)), obj)


SAMPLE = {"model": {"w": torch.randn(3, 2)}, "n": [1, (2.5, None)], 3: b"x", "c": torch.randn(2, dtype=torch.complex64)}
ENCODED = encode(SAMPLE)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_give_a_typed_error_or_a_value(data: st.DataObject) -> None:
    raw = bytearray(ENCODED)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut]), bytes(raw[cut:])):
        try:
            decode(damaged)  # flipped bits of a tensor cannot be seen here: checksums are the checkpoint's
        except EncodingError:
            pass


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        decode(data)


json_trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$", "items", "key", "hex", "text", "name", "dtype", "shape", "metadata"]), inner
        )
        | st.fixed_dictionaries(
            {
                "$": st.sampled_from(
                    ["tuple", "dict", "int", "bytes", "numpy", "tensor", "state_dict", "node", "__init__"]
                )
            },
            optional={"items": inner, "key": st.sampled_from(["a", "b"]), "dtype": inner, "shape": inner, "hex": inner},
        )
    ),
    max_leaves=8,
)


@given(json_trees)
@settings(max_examples=200, deadline=None)
def test_hostile_trees_give_a_typed_error_or_plain_data(tree: Any) -> None:
    try:
        unflatten(tree, {"a": torch.ones(4, dtype=torch.uint8), "b": torch.ones(2)})
    except EncodingError:
        pass


def test_deeply_nested_json_is_refused() -> None:
    text = b'{"format":1,"tree":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    blob = safetensors.torch.save({"accel.tree": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
    with pytest.raises(EncodingError, match="damaged"):
        decode(blob)


def test_newer_format_says_upgrade() -> None:
    text = json.dumps({"format": 2, "tree": None}).encode()
    blob = safetensors.torch.save({"accel.tree": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
    with pytest.raises(EncodingError, match="upgrade accel"):
        decode(blob)


def test_safetensors_of_others_are_refused() -> None:
    with pytest.raises(EncodingError, match=r"accel\.tree"):
        decode(safetensors.torch.save({"weight": torch.ones(2)}))


def test_pickle_is_refused() -> None:
    import pickle

    with pytest.raises(EncodingError):
        decode(pickle.dumps({"a": 1}))


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPES if not any(str(d)[6:].startswith(e) for e in EXOTIC) or d.itemsize > 1]
)
def test_every_dense_dtype_is_carried(dtype: torch.dtype) -> None:
    raw = torch.arange(48, dtype=torch.uint8)
    for tensor in (
        (raw.view(dtype), raw[: dtype.itemsize].view(dtype).reshape(())) if dtype != torch.bool else (raw > 3,)
    ):
        assert same(decode(encode({"x": [tensor]})), {"x": [tensor]})


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.str_("a"), "a"),
        (Color.RED, 1),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(list, a=1), {"a": 1}),
        (Counter("aab"), Counter("aab")),
        (Counter([3, 5, 3]), Counter([3, 5, 3])),
        (torch.Size([2, 3]), torch.Size([2, 3])),
        (torch.device("cuda", 1), "cuda:1"),
        (-(2**20000), -(2**20000)),
        ("\ud800", "\ud800"),
        ({"\ud800": torch.ones(1)}, {"\ud800": torch.ones(1)}),
        (
            {"__metadata__": torch.ones(1), "accel.tree": torch.ones(2)},
            {"__metadata__": torch.ones(1), "accel.tree": torch.ones(2)},
        ),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}, {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}),
        (np.array(1.5), np.array(1.5)),
        (np.arange(3, dtype=">i2")[::-1], np.arange(3, dtype="<i2")[::-1]),
    ],
    ids=lambda value: type(value).__name__,  # one int has more digits than str() gives
)
def test_special_values(obj: Any, expected: Any) -> None:
    assert same(decode(encode(obj)), expected)


def test_random_state_of_python_and_numpy_is_carried() -> None:
    state = {"python": random.Random(1).getstate(), "numpy": np.random.RandomState(1).get_state()}
    back = decode(encode(state))
    generator = random.Random()
    generator.setstate(back["python"])
    numpy_generator = np.random.RandomState()
    numpy_generator.set_state(back["numpy"])
    assert generator.random() == random.Random(1).random()
    assert numpy_generator.rand() == np.random.RandomState(1).rand()


def test_tied_tensors_are_stored_once_and_come_back_tied() -> None:
    weight = torch.randn(4, 4, dtype=torch.complex64)
    plain = torch.randn(4)
    obj = {"a": weight, "b": weight.detach(), "c": weight[:2], "p": plain, "q": [nn.Parameter(plain)]}
    assert len(flatten(obj)[1]) == 3
    back = decode(encode(obj))
    assert back["a"] is back["b"]
    assert back["p"] is back["q"][0]
    assert same(back["c"], weight[:2])
    assert back["c"].untyped_storage().data_ptr() != back["a"].untyped_storage().data_ptr()


def test_strided_and_lazily_conjugated_tensors_are_carried() -> None:
    base = torch.randn(4, 6, dtype=torch.complex64)
    for view in (
        base[0, 0].expand(1),
        base.T,
        base[::2, 1:],
        base.conj(),
        base.imag,
        base.conj().imag,
        base[:1].expand(3, 6),
    ):
        back = decode(encode(view))
        assert torch.equal(back, view)
        assert back.is_contiguous()
        assert not back.is_conj()
        assert not back.is_neg()


class VendorTensor(torch.Tensor):
    """A subclass that would drag its class into a pickle, and answers every operation with itself."""


def test_subclasses_and_gradients_are_stripped() -> None:  # T51
    tensor = torch.randn(2, requires_grad=True).as_subclass(VendorTensor)
    back = decode(encode(tensor))
    assert type(back) is torch.Tensor
    assert not back.requires_grad
    assert torch.equal(back, tensor.detach().as_subclass(torch.Tensor))


def test_state_dict_keeps_module_versions() -> None:
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    back = decode(encode(state))
    assert back._metadata == state._metadata  # type: ignore[attr-defined]
    assert list(back) == list(state)


def test_tensors_of_the_bytes_can_be_listed_by_any_safetensors_reader() -> None:
    blob = encode({"state": {0: {"exp_avg": torch.ones(2)}}})
    assert torch.equal(safetensors.torch.load(blob)["state.0.exp_avg"], torch.ones(2))


def cycle() -> list[Any]:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    return loop


def deep() -> list[Any]:
    obj: list[Any] = []
    for _ in range(5000):
        obj = [obj]
    return obj


@pytest.mark.parametrize(
    ("obj", "where", "what"),
    [
        ({"scheduler": {"lr_lambdas": [lambda e: 1]}}, "object['scheduler']['lr_lambdas'][0]", "function"),
        ({1: {"f": print}}, "object[1]['f']", "builtin_function"),
        (object(), "object:", "object"),
        ([{1, 2}], "object[0]", "set"),
        ({(1, 2): 3}, "object", r"key \(1, 2\) of type tuple"),
        ({True: 3}, "object", "key True of type bool"),
        ({1.5: 3}, "object", "key 1.5 of type float"),
        (1j, "object", "complex"),
        (UserDict(), "object", "UserDict"),
        (nn.Linear(1, 1), "object", "Linear"),
        (namedtuple("Point", "x")(1), "object", "Point"),
        (np.array(["a"]), "object", "numpy array of <U1"),
        (np.array([print]), "object", "numpy array of object"),
        (np.array(["2020"], dtype="M8[Y]"), "object", "datetime64"),
        (np.datetime64("2020"), "object", "datetime64"),
        (np.complex64(1), "object", "numpy complex64"),
        (np.zeros(1, dtype=[("a", "i4")]), "object", "numpy array of"),
        (np.ma.masked_array([1]), "object", "MaskedArray"),
        (torch.ones(2).to_sparse(), "object", "sparse_coo"),
        (torch.empty(2, device="meta"), "object", "without values"),
        (nn.LazyLinear(1).weight, "object", "without values"),
        ([TwoTensor(torch.ones(1), torch.ones(1))], "object[0]", "TwoTensor"),
        (cycle(), "object[1]['again']", "contains itself"),
        (deep(), "object[0]", "nested more than 100 deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_carried_is_named_by_its_path(obj: Any, where: str, what: str) -> None:
    with pytest.raises(EncodingError, match=what) as caught:
        encode(obj)
    assert str(caught.value).startswith(where)


def test_where_names_the_root() -> None:
    with pytest.raises(EncodingError, match=r"^rank\[3\]\['f'\]: function"):
        encode({"f": deep}, "rank[3]")
