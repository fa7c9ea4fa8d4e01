"""What torch_npu's errors mean: which of them are HCCL's, which come late, and what to change.

Work on an NPU runs behind the Python line that issued it, and torch_npu reports its errors as RuntimeErrors from
whatever line comes next. Codes are CANN's (`acl/error_codes/rt_error_codes.h` and HCCL's `hccl_types.h` in the
torch_npu 2.13 wheel; EI numbers: "HCCL fault codes" of CANN 8.5).
"""

from __future__ import annotations

import os
import re

from accel.errors import BackendError, DeviceError

_ASYNCHRONOUS = ("PTA call acl api failed", "The Inner error is reported as above", "ERR00100")
_OURS_TO_LEAVE = ("NPU out of memory",)
_HCCL = re.compile(r"hccl|\bEI\d{4}\b", re.IGNORECASE)
# Error codes of a wait for other ranks that ended without them.
_WAITED = {
    "107019": "wait timeout",
    "107020": "task timeout",
    "507046": "stream synchronize timeout",
}
_CODE = re.compile(r"\b(107019|107020|507046|EI0002|EI0006)\b")
_OPERATOR = re.compile(r"current working operator name is (\w+)")
_CONNECTING = ("EI0006", "socket", "CommInit", "GetRootInfo", "Connect")


def fabric_fault(error: RuntimeError) -> str | None:
    """What HCCL's error means and which variable governs it; None where `error` is not about other ranks."""
    text = str(error)
    code = _CODE.search(text)
    if code is None and not _HCCL.search(text):
        return None
    if code is None and "timeout" not in text.lower() and "timed out" not in text.lower() and "remote" not in text:
        variable = None
    elif (code is not None and code[1] == "EI0006") or any(word in text for word in _CONNECTING):
        variable = "HCCL_CONNECT_TIMEOUT"
    else:
        variable = "HCCL_EXEC_TIMEOUT"
    operator = _OPERATOR.search(text)
    said = f"HCCL error {code[1]} ({_WAITED.get(code[1], 'see the CANN log')})" if code else "HCCL error"
    said += f" in {operator[1]}" if operator else ""
    if variable is None:
        return f"{said}: {_first_line(text)}"
    value = os.environ.get(variable)
    limit = f"{variable}={value}" if value else f"{variable}, which is not set"
    return (
        f"{said}: another rank did not come within {limit} (seconds). If ranks are only slow, raise "
        f"accel.init(timeout=...) or {variable}"
    )


def device_failure(error: RuntimeError) -> DeviceError | None:
    """`error` with the advice that helps where it was raised behind its cause; None where it says all itself."""
    text = str(error)
    if not any(word in text for word in _ASYNCHRONOUS) or any(word in text for word in _OURS_TO_LEAVE):
        return None
    operator = _OPERATOR.search(text)
    where = f"operation {operator[1]}" if operator else "an operation"
    advice = "run again with ASCEND_LAUNCH_BLOCKING=1, which makes every operation wait, to get the line that caused it"
    if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        advice = "ASCEND_LAUNCH_BLOCKING=1 is set, so the Python line named is the right one"
    return DeviceError(f"{where} failed on the NPU: {_cause(text)}. NPU errors come late; {advice}")


def start_failure(error: RuntimeError) -> BackendError:
    """The error for a runtime that does not start."""
    text = str(error)
    if "INF_NAN_MODE_ENABLE" in text:
        return BackendError(
            f"INF_NAN_MODE_ENABLE={os.environ.get('INF_NAN_MODE_ENABLE')!r}: this NPU keeps inf and NaN, and torch_npu "
            "refuses to switch that off in this way. Unset it; INF_NAN_MODE_FORCE_DISABLE=1 would force overflow to "
            "saturate, without fp16"
        )
    return BackendError(f"the NPU's runtime does not start: {_cause(text)}")


def _cause(text: str) -> str:
    """The runtime's own line, which torch_npu puts last, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [
        line for line in lines if "[ERROR]" not in line and not line.startswith(("Since the", "Note:", "The Inner"))
    ]
    return (ours or lines or ["no message"])[-1]


def _first_line(text: str) -> str:
    return text.strip().split("\n", maxsplit=1)[0]
