"""What runs inside a network namespace of `accel.testing.hosts`, started as a script of its own.

`hold NAME`: make namespaces for network and host name, then do what the lines on standard input ask, each a JSON list
of a function below and its arguments, until that input closes. `enter PID COMMAND...`: become COMMAND in the
namespaces of process PID. `try`: say whether namespaces can be made here.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

NEWUTS, NEWNET = 0x04000000, 0x40000000  # linux/sched.h; os.unshare and os.setns are there from Python 3.12 on
_libc = ctypes.CDLL(None, use_errno=True)


def unshare() -> None:
    _checked(_libc.unshare(NEWUTS | NEWNET))


def enter(pid: int) -> None:
    for kind in ("net", "uts"):
        handle = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        _checked(_libc.setns(handle, 0))
        os.close(handle)


def _checked(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Links:
    """The links of this namespace, by name."""

    def __init__(self) -> None:
        from pyroute2 import IPRoute

        self._route = IPRoute()

    def bridge(self, name: str) -> None:
        self._route.link("add", ifname=name, kind="bridge")
        self.up(name)

    def cable(self, name: str, bridge: str, pid: int) -> None:
        """A pair of links: one end here in the bridge, the other called eth0 in the namespace of `pid`."""
        self._route.link("add", ifname=name, kind="veth", peer={"ifname": "eth0", "net_ns_pid": pid})
        self._route.link("set", index=self._index(name), master=self._index(bridge))
        self.up(name)

    def address(self, name: str, ip: str) -> None:
        self._route.addr("add", index=self._index(name), address=ip, prefixlen=24)
        self.up(name)

    def up(self, name: str) -> None:
        self._route.link("set", index=self._index(name), state="up")

    def down(self, name: str) -> None:
        self._route.link("set", index=self._index(name), state="down")

    def shape(self, name: str, rate: int) -> None:
        """What leaves through this link is sent at `rate` bytes/s at most (a token bucket of 64 KiB)."""
        self._route.tc("replace", "tbf", self._index(name), 0x10000, rate=rate, burst=1 << 16, latency="200ms")

    def _index(self, name: str) -> int:
        return int(self._route.link_lookup(ifname=name)[0])


def hold(name: str) -> None:
    unshare()
    socket.sethostname(name)
    links = Links()
    links.up("lo")
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        answer: Any = "done"
        try:
            call: Callable[..., None] = getattr(links, what)
            call(*arguments)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer, flush=True)  # noqa: T201


def main() -> None:
    how, *rest = sys.argv[1:]
    if how == "hold":
        hold(rest[0])
    elif how == "enter":
        enter(int(rest[0]))
        os.execvp(rest[1], rest[1:])
    else:
        import pyroute2  # noqa: F401

        unshare()


if __name__ == "__main__":
    main()
