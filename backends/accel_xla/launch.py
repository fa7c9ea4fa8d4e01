"""Starting replicas: threads of this process on PJRT's CPU client, one process a chip on TPU, as torch_xla does it.

Owns their start and end: when one fails, the others get a moment to notice, and its exit code is the result.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial

from accel.errors import ArgumentError

_GRACE = 10.0  # seconds that the other replicas get to end once one has failed

Body = Callable[[int], None]


def run(body: Body, count: int, client: str) -> int:
    """Run `body(index)` in `count` replicas of PJRT's `client`; the exit code of the first that failed, or 0.

    The caller must end the process with that code at once where it is not 0: a replica may still be running.
    """
    if client == "CPU":
        return _threads(body, count)
    from torch_xla._internal import pjrt, tpu

    chips = tpu.num_available_chips()
    if count != chips:
        raise ArgumentError(
            f"{count} replicas, but this host shows {chips} TPU chip(s), and PJRT runs one process on each: start "
            f"{chips}, or 1 process for a single chip, or choose chips with TPU_VISIBLE_CHIPS"
        )
    codes = pjrt.run_multiprocess(partial(_in_process, body), start_method="fork")
    return next((code for code in codes.values() if code), 0)


def _in_process(body: Body) -> int:
    import torch_xla.runtime as xr

    return _code(body, int(xr.local_ordinal()))


def _threads(body: Body, count: int) -> int:
    """All replicas of the CPU client are threads of this process."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    devices = xm.get_xla_supported_devices()
    xm.set_replication(torch_xla.device(), devices)
    codes: dict[int, int] = {}  # in the order in which replicas end
    ended = threading.Condition()

    def replica(index: int) -> None:
        torch_xla.device(index)  # makes the device this thread's
        code = _code(body, index)
        with ended:
            codes[index] = code
            ended.notify_all()

    for index in range(count):
        threading.Thread(target=replica, args=(index,), name=f"accel-replica-{index}", daemon=True).start()
    with ended:
        ended.wait_for(lambda: len(codes) == count or any(codes.values()))
        ended.wait_for(lambda: len(codes) == count, _GRACE if len(codes) < count else 0)
        return next((code for code in codes.values() if code), 0)


def _code(body: Body, index: int) -> int:
    """The exit code that `body(index)` ends with, after what Python says of an exception."""
    try:
        body(index)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)  # noqa: T201 - as Python itself does
        return 1
    except BaseException:
        text = traceback.format_exc()
        print(f"replica {index} failed:\n{text}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    return 0
