"""A training loop for `test_watch`: in step 7 one rank stops itself, is killed, raises, or leaves early.

    frozen.py HOW RANK TIMEOUT
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

import accel

how, who, timeout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with accel.init(backend="cpu", timeout=timeout) as session:
    model = nn.Linear(8, 8)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(1, 10):
        if step == 7 and session.rank == who:
            print(f"at {time.time()}", flush=True)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raise":
                raise ValueError("rank has had enough")
            if how == "leave":
                break
        loss = model(torch.ones(4, 8)).sum()
        session.backward(loss)
        session.step(optimizer)
