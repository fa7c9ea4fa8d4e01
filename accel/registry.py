"""The registry: which backends exist, which of them can be used here and why, and which one a session gets.

Backends register through the entry-point group `accel.backends`, built-in ones as a third party's. Listing and
selecting never initialise a device and survive any exception from a backend's package. There is no fall-back from one
backend to another.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import logging
import os
from typing import TYPE_CHECKING

from accel.backend import Backend, BackendInfo, BackendSpec, NeedsVariables
from accel.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("accel")

GROUP = "accel.backends"
_HOST = "cpu"  # used when no accelerator hardware is present


class _BrokenSpec:
    """Stands for an entry point that could not be loaded, so that the listing can say why."""

    aliases: tuple[str, ...] = ()

    def __init__(self, name: str, where: str, error: BaseException) -> None:
        self.name = name
        self.error = error
        self._reason = f"its entry point {where!r} failed to load: {type(error).__name__}: {error}"

    def hardware(self) -> str | None:
        return None

    def probe(self) -> BackendInfo:
        return BackendInfo(self.name, usable=False, reason=self._reason)

    def load(self) -> object:
        raise self.error


def specs() -> list[BackendSpec]:
    """Every registered spec, one a name, in the order of registration. Raises `BackendError` when two claim one
    name.
    """
    found: dict[str, tuple[str, BackendSpec]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in found:
            if found[entry.name][0] == entry.value:  # the same distribution seen twice on sys.path
                continue
            raise BackendError(
                f"backend name {entry.name!r} is registered twice, by {found[entry.name][0]!r} and {entry.value!r}; "
                "uninstall one of the two packages"
            )
        try:
            spec = entry.load()
        except (Exception, SystemExit) as error:
            spec = _BrokenSpec(entry.name, entry.value, error)
        found[entry.name] = (entry.value, spec)
    if not found:
        raise BackendError(
            f"no backend is registered in the entry-point group {GROUP!r}: accel-torch is not installed in this "
            "environment; run `pip install -e .` in its folder or `pip install accel-torch`"
        )
    return [spec for _, spec in found.values()]


def backends() -> list[BackendInfo]:
    """All registered backends, each with whether and why it can be used here. Never initialises a device."""
    return [_probe(spec) for spec in specs()]


def get_backend(name: str | None = None, *, timeout: float | None = None) -> Backend:
    """Load the backend `name`, or the one that `ACCEL_BACKEND` or the hardware decides.

    `timeout`: seconds that the session will wait for other ranks, for vendor libraries that want it before they load.

    Raises `BackendError` when it is unknown, unusable or ambiguous; the message lists every registered backend and
    why it is or isn't usable.
    """
    spec, info = select(name)
    from accel import _env

    if timeout is not None and isinstance(spec, NeedsVariables):
        _env.set_vendor_variables(spec.variables(timeout))
    with _env.without_autoload():
        from accel.collective import Collective
        from accel.precision import Precision

        try:
            parts = spec.load()
        except (Exception, SystemExit) as error:
            raise BackendError(f"backend {spec.name!r} was chosen but failed to load: {error}") from error
    return Backend(
        name=spec.name,
        kind=parts.device.kind,
        origin=info.origin or "measured",
        versions=info.versions,
        device=parts.device,
        collective=Collective.local(parts.transport, parts.device),
        precision=Precision(parts.numerics, parts.capabilities),
        memory=parts.memory,
        transport=parts.transport,
        _capabilities=parts.capabilities,
    )


def select(name: str | None = None) -> tuple[BackendSpec, BackendInfo]:
    """The spec that `name`, `ACCEL_BACKEND` or the hardware present decides, and its probe; it is usable."""
    registered = specs()
    source = "backend" if name is not None else "ACCEL_BACKEND"
    wanted = (os.environ.get("ACCEL_BACKEND", "") if name is None else name).strip().lower()
    if name is not None and not wanted:
        raise BackendError(f"backend={name!r} names no backend\n{_listing(registered)}")
    if wanted:
        return _named(wanted, source, registered)
    return _by_hardware(registered)


def decided(name: str | None = None) -> BackendSpec | None:
    """The spec that `name`, `ACCEL_BACKEND` or the hardware decides, without asking whether it can be used.

    None where that is undecided; a session then says why.
    """
    wanted = (os.environ.get("ACCEL_BACKEND", "") if name is None else name).strip().lower()
    found = [
        spec for spec in specs() if (wanted in (spec.name, *spec.aliases) if wanted else _hardware(spec) is not None)
    ]
    if len(found) > 1:  # two drivers of one kind of hardware
        found = [spec for spec in found if _probe(spec).usable][:1]
    return found[0] if found else None


def _named(wanted: str, source: str, registered: list[BackendSpec]) -> tuple[BackendSpec, BackendInfo]:
    candidates = [spec for spec in registered if wanted == spec.name or wanted in spec.aliases]
    if not candidates:
        names = [n for spec in registered for n in (spec.name, *spec.aliases)]
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BackendError(
            f"{source}={wanted!r} is not a registered backend{hint}; choose one of the\n{_listing(registered)}"
        )
    infos = [(spec, _probe(spec)) for spec in candidates]
    for spec, info in infos:
        if info.usable:
            return spec, info
    why = "; ".join(f"{spec.name}: {info.reason}" for spec, info in infos)
    cause = next((spec.error for spec in candidates if isinstance(spec, _BrokenSpec)), None)
    others = [spec for spec in registered if spec not in candidates]
    raise BackendError(f"{source}={wanted!r} cannot be used: {why}\n{_listing(others)}") from cause


def _by_hardware(registered: list[BackendSpec]) -> tuple[BackendSpec, BackendInfo]:
    present: dict[str, list[BackendSpec]] = {}  # one kind of hardware may have two drivers (torch_xla, torch_tpu)
    for spec in registered:
        hardware = _hardware(spec)
        if hardware is not None:
            present.setdefault(hardware, []).append(spec)
    if len(present) > 1:
        kinds = " and ".join(f"{hardware} ({'/'.join(s.name for s in found)})" for hardware, found in present.items())
        raise BackendError(f"two kinds of accelerator are present, {kinds}: set ACCEL_BACKEND to the one to use")
    if not present:
        return _named(_HOST, "backend", registered)
    ((hardware, found),) = present.items()
    infos = [(spec, _probe(spec)) for spec in found]
    for spec, info in infos:
        if info.usable:
            return spec, info
    why = "; ".join(f"{spec.name}: {info.reason}" for spec, info in infos)
    raise BackendError(
        f"{hardware} is present but cannot be used: {why}. Set ACCEL_BACKEND=cpu to run on CPU on purpose"
    )


def _hardware(spec: BackendSpec) -> str | None:
    try:
        return spec.hardware()
    except (Exception, SystemExit) as error:  # a broken detector must not take the machine's other backends with it
        log.warning("backend %r could not look for its hardware: %s: %s", spec.name, type(error).__name__, error)
        return None


def _probe(spec: BackendSpec) -> BackendInfo:
    try:
        return spec.probe()
    except (Exception, SystemExit) as error:
        return BackendInfo(spec.name, usable=False, reason=f"its probe failed: {type(error).__name__}: {error}")


def _listing(registered: Iterable[BackendSpec]) -> str:
    lines = ["registered backends:"]
    for info in map(_probe, registered):
        names = f"{info.name} ({', '.join(info.aliases)})" if info.aliases else info.name
        lines.append(f"  {names}: {'usable' if info.usable else 'not usable'}: {info.reason}")
    return "\n".join(lines)
