"""What a checkpoint holds of an object and how it comes back: models, optimizers, schedulers, scalers, plain values.

`apply_states` checks every object against its saved state before it changes the first one. Files belong to
`accel._checkpoint`, the encoding to `accel._codec`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from accel._unwrap import clean_name, inner_wrappers, unwrap
from accel.errors import ArgumentError, CheckpointError

_SHOWN = 5  # names listed in an error before "and N more"
_SHAPES = (
    "accel.parameter_shapes"  # our addition to an optimizer's state, so that a wrong model is found before loading
)
# How an optimizer runs here, not what it computes: a checkpoint from another device must not switch these.
_EXECUTION = ("foreach", "fused", "capturable", "differentiable")


def state_of(name: str, obj: Any) -> Any:
    """What to save of `obj`: its state dict, or the plain value itself. `name` is used in errors.

    Raises `ArgumentError` for an object that gives a state dict but could not take it back.
    """
    if isinstance(obj, nn.Module):
        return _model_state(obj)
    if not hasattr(obj, "state_dict"):
        return obj
    if not hasattr(obj, "load_state_dict"):
        raise ArgumentError(
            f"{name}: {type(obj).__name__} has state_dict() but no load_state_dict(), so it could not be loaded; "
            "add one, or pass its state dict as a plain value"
        )
    state = obj.state_dict()
    if _is_optimizer(obj):
        shapes = [list(parameter.shape) for group in obj.param_groups for parameter in group["params"]]
        state = {**state, _SHAPES: shapes}
    return state


def apply_states(objects: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """Load `states` into the objects of the same names; return the states of all other names, such as plain values.

    A value in `objects` without `load_state_dict` is a default, whose saved value is among those returned. Everything
    that can be checked is checked first: after a `CheckpointError` the objects are as they were.
    """
    absent = [name for name in objects if name not in states]
    if absent:
        raise CheckpointError(f"the checkpoint has no {_listed(absent)}; it holds {_listed(states)}")
    loaded = {name: obj for name, obj in objects.items() if hasattr(obj, "load_state_dict")}
    for name, obj in loaded.items():
        check_state(name, obj, states[name])
    for name, obj in loaded.items():
        _load(name, obj, states[name])
    return {name: state for name, state in states.items() if name not in loaded}


def apply_state(name: str, obj: Any, state: Any) -> None:
    """Check `state`, then load it into `obj`, which keeps device, dtypes and wrappers. Raises `CheckpointError`."""
    check_state(name, obj, state)
    _load(name, obj, state)


def check_state(name: str, obj: Any, state: Any) -> None:
    """Raise `CheckpointError` when `state` cannot be loaded into `obj`, as far as that is known without loading it."""
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{name}: the checkpoint holds a {type(state).__name__}, not the state of a {type(obj).__name__}; "
            "was something else saved under this name?"
        )
    if isinstance(obj, nn.Module):
        _check_model(name, obj, state)
    elif _is_optimizer(obj):
        _check_optimizer(name, obj, state)


def _load(name: str, obj: Any, state: Any) -> None:
    try:
        if isinstance(obj, nn.Module):
            _load_model(obj, state)
        elif _is_optimizer(obj):
            _load_optimizer(obj, state)
        else:
            obj.load_state_dict(copy.deepcopy(state))  # many keep what they are given
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as exc:
        raise CheckpointError(
            f"{name}: loading into this {type(obj).__name__} failed ({type(exc).__name__}: {exc}); "
            "was the checkpoint saved from another kind of object?"
        ) from exc


def _model_state(model: nn.Module) -> OrderedDict[str, Any]:
    module = unwrap(model)
    wrappers = inner_wrappers(module)
    saved = module.state_dict()
    state: OrderedDict[str, Any] = OrderedDict((clean_name(key, wrappers), value) for key, value in saved.items())
    versions = getattr(
        saved, "_metadata", {}
    )  # by module path, without the dot at its end; an inner module comes later
    cleaned = ((clean_name(f"{path}.", wrappers)[:-1], version) for path, version in versions.items())
    state._metadata = OrderedDict(cleaned)  # type: ignore[attr-defined] # where Module.load_state_dict looks for it
    return state


def _load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    module = unwrap(model)
    wrappers = inner_wrappers(module)
    named: OrderedDict[str, Any] = OrderedDict((key, state[clean_name(key, wrappers)]) for key in module.state_dict())
    versions = getattr(state, "_metadata", {})
    paths = {path: clean_name(f"{path}.", wrappers)[:-1] for path, _ in module.named_modules(remove_duplicate=False)}
    named._metadata = OrderedDict(  # type: ignore[attr-defined]
        (path, versions[clean]) for path, clean in paths.items() if clean in versions
    )
    module.load_state_dict(named, strict=True)


def _check_model(name: str, model: nn.Module, state: Mapping[str, Any]) -> None:
    module = unwrap(model)
    wrappers = inner_wrappers(module)
    own = {clean_name(key, wrappers): value for key, value in module.state_dict().items()}
    missing = [key for key in own if key not in state]
    unexpected = [key for key in state if key not in own]
    if own and len(missing) == len(own):
        raise CheckpointError(
            f"{name}: no key of the checkpoint matches this {type(module).__name__}; the checkpoint has "
            f"{_listed(state)}, the model has {_listed(own)}"
        )
    if missing or unexpected:
        parts = [
            f"{len(keys)} {kind}: {_listed(keys)}"
            for kind, keys in (("missing from the checkpoint", missing), ("unknown to the model", unexpected))
            if keys
        ]
        raise CheckpointError(f"{name}: the checkpoint is not of this {type(module).__name__}; keys {'; '.join(parts)}")
    wrong = [
        f"{key} (checkpoint {_described(state[key])}, model {_described(value)})"
        for key, value in own.items()
        if isinstance(value, torch.Tensor) and not _fits(state[key], value)
    ]
    if wrong:
        raise CheckpointError(f"{name}: the checkpoint is not of this {type(module).__name__}: {_listed(wrong)}")


def _fits(saved: Any, value: torch.Tensor) -> bool:
    """Whether `saved` can be copied into `value` without a change of shape or of kind of number."""
    if not isinstance(saved, torch.Tensor):
        return False
    kinds = [(t.is_floating_point(), t.is_complex()) for t in (saved, value)]
    return kinds[0] == kinds[1] and (nn.parameter.is_lazy(value) or saved.shape == value.shape)


def _is_optimizer(obj: Any) -> bool:
    return hasattr(obj, "param_groups") and hasattr(obj, "load_state_dict")


def _check_optimizer(name: str, optimizer: Any, state: Mapping[str, Any]) -> None:
    try:
        saved = [len(group["params"]) for group in state["param_groups"]]
    except (LookupError, TypeError) as exc:
        raise CheckpointError(f"{name}: the checkpoint holds no state of an optimizer, but {_listed(state)}") from exc
    own = [len(group["params"]) for group in optimizer.param_groups]
    if saved != own:
        raise CheckpointError(
            f"{name}: the checkpoint has parameter groups of sizes {saved}, this {type(optimizer).__name__} has {own}; "
            "build it with the same parameters in the same groups"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    wrong = [
        f"parameter {index} (checkpoint {tuple(shape)}, optimizer {tuple(parameter.shape)})"
        for index, (shape, parameter) in enumerate(zip(state.get(_SHAPES, []), parameters, strict=False))
        if not nn.parameter.is_lazy(parameter) and list(parameter.shape) != list(shape)
    ]
    if wrong:
        raise CheckpointError(f"{name}: the checkpoint is of other parameters: {_listed(wrong)}")


def _load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a copy, because torch keeps tensors that need no conversion. Hyperparameters come from the checkpoint."""
    copied = tree_map(_copied, {key: value for key, value in state.items() if key != _SHAPES})
    for saved, own in zip(copied["param_groups"], optimizer.param_groups, strict=True):
        for key in _EXECUTION:
            if key in own:
                saved[key] = own[key]
        for key, value in own.items():
            if key != "params" and key in saved:
                saved[key] = _like(value, saved[key])
    optimizer.load_state_dict(copied)


def _copied(value: Any) -> Any:
    # deepcopy of a tensor goes through torch's deprecated storages where torch_npu 2.13 is loaded, and warns.
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _like(own: Any, saved: Any) -> Any:
    """`saved` as a tensor on the device of `own`, or as a number: whichever `own` is. A learning rate may be either."""
    if isinstance(own, torch.Tensor):
        return torch.as_tensor(saved, dtype=own.dtype, device=own.device)
    if isinstance(saved, torch.Tensor) and isinstance(own, (int, float)):
        return saved.item()
    return saved


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(str(name) for name in names[:_SHOWN]) or "nothing"
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
