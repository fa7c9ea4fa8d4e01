"""What each rank of a multi-host test runs: steps of an all_reduce, with the news of each in a file of its own.

`job.py FOLDER STEPS TIMEOUT`: writes `step N` and at the end `sum VALUE` or the error to FOLDER/rank-N, and its
process id to FOLDER/pid-N.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import torch

import accel
from accel.errors import AccelError

PAUSE = 0.1  # seconds between steps


def main() -> None:
    folder, steps, timeout = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rank = os.environ["RANK"]
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    with (folder / f"rank-{rank}").open("a", buffering=1) as news:
        try:
            with accel.init(timeout=timeout) as s:
                hosts = s.backend.collective.all_gather_object(socket.gethostname())
                news.write(f"hosts {' '.join(hosts)}\n")
                total = torch.zeros(1)
                for step in range(steps):
                    t = torch.full((100_000,), s.rank + 1.0)
                    s.backend.collective.all_reduce(t)
                    total += t[0]
                    news.write(f"step {step}\n")
                    time.sleep(PAUSE)
                news.write(f"sum {total.item():g}\n")
        except AccelError as error:
            news.write(f"error {time.time():.2f} {type(error).__name__}: {error.line}\n")
            raise


if __name__ == "__main__":
    main()
