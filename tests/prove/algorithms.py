"""One rank of the comparison of ring, tree and server, in a host of its own: `algorithms.py OUT BYTES REPEATS`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch

import accel
from accel.bench.algorithms import ALGORITHMS


def main() -> None:
    out, size, repeats = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with accel.init(timeout=300.0, check="off") as s:
        c = s.backend.collective
        t = torch.zeros(size // 4)
        small = torch.zeros(1)
        calls = {**ALGORITHMS, "fabric": lambda c, t: c.all_reduce(t).wait()}
        times: dict[str, list[float]] = {name: [] for name in [*calls, "message"]}
        for call in calls.values():
            call(c, small)  # connections between the hosts are made on first use
        for _ in range(repeats):
            for name, call in calls.items():
                c.barrier()
                start = time.perf_counter()
                call(c, t)
                times[name].append(time.perf_counter() - start)
        for _ in range(20):  # half of a round trip between ranks 0 and 1
            c.all_reduce(small)
            start = time.perf_counter()
            if c.rank == 0:
                c.send(small, 1)
                c.recv(small, 1)
            elif c.rank == 1:
                c.recv(small, 0)
                c.send(small, 0)
            times["message"].append((time.perf_counter() - start) / 2)
        ranks = c.all_gather_object(times)
        if c.rank == 0:
            slowest = {name: [max(r[name][i] for r in ranks) for i in range(len(times[name]))] for name in calls}
            medians = {name: statistics.median(values) for name, values in slowest.items()}
            medians["message"] = statistics.median(ranks[0]["message"])
            out.write_text(json.dumps(medians))


if __name__ == "__main__":
    main()
