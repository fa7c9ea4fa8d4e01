"""`accel.init`: from arguments and environment to a `Session`.

Everything that can be refused is refused before anything is changed; what was changed is put back when a later part
fails.
"""

from __future__ import annotations

import logging
import math
import socket
from dataclasses import replace
from datetime import timedelta
from typing import Any

from accel import _env, _observer, _threads, registry, rendezvous
from accel._gradsync import DDPSync, GradSync, NoSync
from accel._ingraph import InGraphSync
from accel._start import Start
from accel._timeout import seconds as checked_seconds
from accel._window import checked_accumulate
from accel.backend import Backend
from accel.collective import Collective
from accel.control import ControlPlane
from accel.errors import ArgumentError, UnsupportedError
from accel.precision import GREATEST_SCALE, LEAST_SCALE, LossScale, checked_policy
from accel.scaler import Scaler
from accel.session import Session

log = logging.getLogger("accel")

CHECKS = ("first", "every", "off")


def init(
    *,
    backend: str | None = None,
    precision: str = "fp32",
    accumulate: int = 1,
    clip_norm: float | None = None,
    loss_scale: float | LossScale | None = None,
    seed: int | None = 0,
    timeout: float | timedelta = 600.0,
    deterministic: bool = False,
    check: str = "first",
) -> Session:
    """Start a session on the backend that `backend`, `ACCEL_BACKEND` or the hardware decides, and join the other ranks.

    loss_scale: None dynamic, a float static, or `LossScale`; used under fp16 only. clip_norm: largest gradient norm,
    `inf` only measures. seed: host and device generators get seed + rank; None leaves them alone. timeout: seconds
    for every collective and barrier. check: "first" compares each new collective between ranks, "every" all of them,
    "off" none.

    Raises `ArgumentError`, `BackendError`, `UnsupportedError`, `LaunchError` or `CollectiveTimeout`.
    """
    _env.set_log_level()
    policy = checked_policy(precision)
    checked_accumulate(accumulate)
    clip_norm = _positive("clip_norm", clip_norm, infinite=True)
    seconds = checked_seconds(timeout)
    if not isinstance(deterministic, bool):
        raise ArgumentError(f"deterministic={deterministic!r}: expected True or False")
    if check not in CHECKS:
        raise ArgumentError(f"check={check!r}: expected one of {', '.join(CHECKS)}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise ArgumentError(f"seed={seed!r}: expected an integer from 0, or None to leave the generators alone")
    observer = _observer.current.get()
    if observer is not None and observer.seed is not None:
        seed = observer.seed
    if not isinstance(loss_scale, LossScale):
        loss_scale = _positive("loss_scale", loss_scale, infinite=False)
        if loss_scale is not None and not LEAST_SCALE <= loss_scale <= GREATEST_SCALE:
            raise ArgumentError(f"loss_scale={loss_scale!r}: expected from 2**-126 to 2**127, as fp32 holds it")
    for line in _env.unknown_settings():
        log.warning("%s", line)
    launched = rendezvous.read()
    chosen = registry.get_backend(backend, timeout=seconds)
    place = chosen.transport.place(launched)
    chosen.capabilities().require(f"precision.{policy}")
    if policy == "fp16" and chosen.kind == "lazy":
        raise UnsupportedError(LAZY_FP16.format(chosen.name))
    if place.world_size > 1:
        chosen.capabilities().require("collective.processes")
    control = ControlPlane(
        chosen.transport.connect(place, seconds) if place.world_size > 1 else None,
        place.rank,
        place.world_size,
        seconds,
    )
    try:
        _compare_settings(control, seconds, check)
        local_rank, local_world_size = _local_place(place, control)
        threads = _threads.configure(local_world_size)
        chosen.device.set(_device_index(local_rank, chosen) if place.device is None else place.device)
        if place.world_size > 1:
            _refuse_shared_device(chosen, control)
        chosen.precision.apply(policy, deterministic)  # some switches are read when the fabric is joined
        collective = Collective.connect(
            chosen.transport, chosen.device, control, local_rank=local_rank, timeout=seconds, check=check
        )
        chosen = replace(chosen, collective=collective)
    except BaseException:
        chosen.precision.restore()
        chosen.collective.destroy()
        control.close()
        raise
    scaler = None
    if policy == "fp16":
        scaler = Scaler(LossScale() if loss_scale is None else loss_scale, chosen.device.torch_device)
        chosen.precision.loss_scaling = "dynamic" if scaler.dynamic else "static"
    elif loss_scale is not None:
        log.warning("loss_scale=%r is not used: precision %r needs no loss scaling", loss_scale, policy)
    if seed is not None:
        chosen.device.seed(seed + place.rank)
        if place.device is not None:  # ranks may be threads that share the host's generators: none draws before all
            control.barrier(seconds)
    begun = Start(
        backend=chosen,
        place=place,
        local_rank=local_rank,
        local_world_size=local_world_size,
        threads=threads,
        control=control,
        sync=_grad_sync(chosen, control),
        scaler=scaler,
        accumulate=accumulate,
        clip_norm=clip_norm,
        seed=seed,
        timeout=seconds,
    )
    return Session(begun) if observer is None else observer.session(begun)


LAZY_FP16 = (
    "precision='fp16' is unsupported on backend {!r}: it is a lazy device, and loss scaling reads a flag on the host, "
    "which would cut the step's graph in its middle; use 'bf16', which needs no loss scaling"
)


def _compare_settings(control: ControlPlane, timeout: float, check: str) -> None:
    """Raise `ArgumentError` on all ranks where their checks differ; warn on all where their timeouts do."""
    if control.world_size == 1:
        return
    sides = control.all_gather_object([timeout, check])
    shown = [f"rank {rank}: timeout={limit:g}, check={mode!r}" for rank, (limit, mode) in enumerate(sides)]
    if len({mode for _, mode in sides}) > 1:
        raise ArgumentError(f"check differs between ranks ({'; '.join(shown)}): they could not compare; give all one")
    if len({limit for limit, _ in sides}) > 1:
        log.warning(
            "timeout differs between ranks (%s): the one with the shortest gives up while others still wait; give "
            "accel.init the same timeout on all",
            "; ".join(shown),
        )


def _grad_sync(backend: Backend, control: ControlPlane) -> GradSync:
    if control.world_size == 1:
        return NoSync()
    return InGraphSync(backend, control) if backend.kind == "lazy" else DDPSync(backend, control)


def _local_place(place: rendezvous.Rendezvous, control: ControlPlane) -> tuple[int, int]:
    """Local rank and local world size; counted by host name where the launcher does not say them, never guessed from
    the rank.
    """
    if place.local_rank is not None and place.local_world_size is not None:
        return place.local_rank, place.local_world_size
    hosts = control.all_gather_object(socket.gethostname())
    same = [rank for rank, host in enumerate(hosts) if host == hosts[place.rank]]
    return same.index(place.rank) if place.local_rank is None else place.local_rank, len(same)


def _device_index(local_rank: int, backend: Backend) -> int:
    """The device of this rank; a launcher that shows each process one device only makes it index 0 (T35)."""
    count = backend.device.count()
    if count == 1:
        return 0
    if local_rank >= count:
        raise ArgumentError(
            f"local rank {local_rank} has no device: {backend.name} shows {count} to this process; "
            f"start at most {count} processes on this host"
        )
    return local_rank


def _refuse_shared_device(backend: Backend, control: ControlPlane) -> None:
    """Two ranks on one device: the fabric refuses it late and in its own words, or hangs; every rank says it now."""
    sides = control.all_gather_object([backend.device.identity(), socket.gethostname()])
    mine = sides[control.rank][0]
    same = [rank for rank, (identity, _) in enumerate(sides) if identity == mine]
    if mine is not None and len(same) > 1:
        hosts = sorted({str(sides[rank][1]) for rank in same})
        raise ArgumentError(
            f"ranks {', '.join(map(str, same))} would share one device, {mine} on {' and '.join(hosts)}: every rank "
            f"needs one of its own. {backend.name} shows {backend.device.count()} to this process: start at most one "
            "process a device on each host, or show each process another device"
        )


def _positive(name: str, value: Any, infinite: bool) -> float | None:
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not value > 0
        or (math.isinf(value) and not infinite)
    ):
        raise ArgumentError(
            f"{name}={value!r}: expected a number above 0{' (inf only measures)' if infinite else ''}, or None"
        )
    return float(value)
