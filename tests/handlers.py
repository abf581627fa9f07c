"""What workers run in tests. It imports little, since every worker of these tests loads it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from windrow.workers import child
from windrow.workers.messages import MessageBuffer

_kept: list[Any] = []


def doubled(request: Any, room: MessageBuffer) -> Any:
    out = room.empty(request.shape, request.dtype)
    return np.multiply(request, 2, out=out)


def returned(request: Any, room: MessageBuffer) -> Any:
    return request


def process_id(request: Any, room: MessageBuffer) -> int:
    return os.getpid()


def called(request: tuple[Any, ...], room: MessageBuffer) -> Any:
    """A function with its arguments."""
    function, *arguments = request
    return function(*arguments)


def once(marker: Path, end: str, value: Any) -> Any:
    """End this process in the given way while there is no marker; then return the value."""
    if marker.exists():
        return value
    marker.touch()
    value += 1  # what is made again must not see this
    return ended(end)


def ended(how: str) -> NoReturn:
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hang":
            signal.pause()
        case "closed":  # a child keeps the socket open, so the pool does not see it close
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            wait_for_pool_to_close()
            os._exit(0)
    raise AssertionError(how)


def wait_for_pool_to_close() -> None:
    """Read this worker's socket until the pool closes its end."""
    with contextlib.suppress(ConnectionError):
        while pool_socket().recv(4096):
            pass


def pool_socket() -> socket.socket:
    """Return this worker's end of its socket."""
    found: socket.socket = vars(child)["_parent"]
    return found


def keeps_its_request(request: Any, room: MessageBuffer) -> Any:
    """The sums of all requests so far: what was kept must not change."""
    _kept.append(request)
    return os.getpid(), [int(kept.sum()) for kept in _kept]


def keeps_and_returns(request: Any, room: MessageBuffer) -> Any:
    """The first request of this worker, over and over, and changed later."""
    _kept.append(request)
    _kept[0] += 1
    return _kept[0]


def keeps_its_reply(request: Any, room: MessageBuffer) -> Any:
    """One array of the room, filled anew for each reply."""
    if not _kept or _kept[-1].shape != request.shape:
        _kept.append(room.empty(request.shape, request.dtype))
    _kept[-1][...] = request
    return _kept[-1]


def about_this_process(request: Any, room: MessageBuffer) -> Any:
    return {
        "environment": {name: os.environ.get(name) for name in request},
        "modules": sorted(name for name in sys.modules if "." not in name),
        "threads": threading.active_count(),
        "argv": sys.argv,
        "path": sys.path,
        "optimize": sys.flags.optimize,
    }


def reports(request: int, buffer: MessageBuffer) -> int:
    """Report every number below the request."""
    for number in range(request):
        child.report(number)
    return request


def reports_until_stopped(request: Path, buffer: MessageBuffer) -> None:
    """Report whenever the parent has sent or stopped sending; make a file when it has stopped."""
    try:
        while True:
            child.report(None)
            select.select([pool_socket()], [], [])
    except child.StoppedError:
        request.touch()
        raise


def write_number(index: int, count: int) -> None:
    _kept.append((index, count))


def number(request: Any, room: MessageBuffer) -> Any:
    return _kept[0]
