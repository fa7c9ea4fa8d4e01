"""libtpu's compiler behind a pipe: one line of JSON in, one line of JSON out, for as long as the parent keeps it.

This file runs in another environment than the rest of accel (the jax that matches libtpu does not go with torch_xla),
as a script, by another Python: it imports the standard library and jax, and nothing of accel. It goes through jax's
internals, which change from release to release; written for jax 0.10.2 with libtpu 0.0.52.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from typing import Any

# What libtpu reads when it is loaded. Without the first it asks a metadata server that only Google's machines have,
# again and again for minutes; the others are what that server would have said, and do not limit what is compiled for.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # Loading libtpu takes a lock on the machine's chips, and fails where another process has it; no chip is used here.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",  # jax itself must not look for a TPU; the compiler needs none
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
PACKAGES = ("jax", "jaxlib", "libtpu")


def missing() -> list[str]:
    """Packages that this Python lacks."""
    absent = []
    for name in PACKAGES:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
    return absent


def topology(name: str, chip_config: str | None) -> Any:
    """Libtpu's description of a topology; raises jax's error, with libtpu's text, for one that it refuses."""
    from jax.experimental import topologies

    options = {} if chip_config is None else {"chip_config_name": chip_config}
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **options)


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Devices and chips of a topology."""
    devices = topology(request["topology"], request["chip_config"]).devices
    return {
        "kind": devices[0].device_kind,
        "devices": len(devices),
        "chips": len({tuple(device.coords) for device in devices}),
    }


def compile_program(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the StableHLO text in a file as one replica a device, and say what the executable needs and does."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    jax.config.update("jax_optimization_level", request["optimization"])
    devices = topology(request["topology"], request["chip_config"]).devices[: request["replicas"]]
    assignment = np.array([device.id for device in devices]).reshape(len(devices), 1)
    options = compiler.get_compile_options(num_replicas=len(devices), num_partitions=1, device_assignment=assignment)
    with open(request["program"], encoding="utf-8") as file:  # noqa: PTH123 - as short as it can be
        text = file.read()
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        start = time.perf_counter()
        executable = devices[0].client.compile(
            module, executable_devices=xla_client.DeviceList(tuple(devices)), compile_options=options
        )
        seconds = time.perf_counter() - start
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    # Not `optimal_seconds`: it is garbage for nets with convolutions (libtpu 0.0.52).
    return {
        "seconds": seconds,
        "peak": memory.peak_memory_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "flops": cost.get("flops"),
        "bytes_accessed": cost.get("bytes accessed"),
    }


WORK = {"describe": describe, "compile": compile_program}


def main() -> None:
    """Answer requests until standard input ends; the first line out says what this environment is."""
    del sys.path[0]  # this file's folder: its modules are not for this interpreter
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libtpu prints must not come between the answers

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    absent = missing()
    answer({"missing": absent, "versions": {name: metadata.version(name) for name in PACKAGES if name not in absent}})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(WORK[request["do"]](request))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
