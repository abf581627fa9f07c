"""Starts a new Python process that ends with this one.

The process is spawned, not forked: a fork would lack the threads of this process, TensorStore's among
them. It does not run `__main__` again: the parent sends what it needs.

Invariant: a process that has called `end_with_parent` ends soon after its parent, however the parent
ended and whatever the process is doing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

# Workers do not use accelerators, even if a module of the user imports jax or torch.
_ENVIRONMENT: Final = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}

# Options that change how an interpreter works; the search path is passed separately.
_FLAGS: Final = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "safe_path": "-P",
    "dont_write_bytecode": "-B",
}

# The numbers of standard input, output and error.
_STREAMS: Final = (0, 1, 2)

# A child that the user forked may keep the parent's end of the pipe open, so the parent's id is checked too.
_LOOK_S: Final = 0.5


def started(
    program: str, arguments: Sequence[int], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a new interpreter that runs `program` with SIGINT blocked.

    Args:
        program: Python code. Its `sys.argv[1:]` are the arguments, then this process's search path.
        arguments: Numbers that it gets.
        descriptors: File descriptors that it inherits under their numbers: see `apart_from_streams`.
    """
    from multiprocessing import spawn  # imported here, since it loads a dozen modules

    executable = spawn.get_executable() or sys.executable
    path = [entry for entry in sys.path if isinstance(entry, str)]
    command = [executable, *_flags(), "-u", "-c", program, *map(str, arguments), *path]
    # A Ctrl-C during the start would print a traceback; the program unblocks it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=_stream(1),
            stderr=_stream(2),
            pass_fds=descriptors,
            env={**os.environ, **_ENVIRONMENT},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def apart_from_streams() -> Iterator[None]:
    """A context in which no new descriptor gets the number of a standard stream that is closed.

    The child's own streams would take its place, and what libraries print would go into it.
    """
    held: list[int] = []
    try:
        while not held or held[-1] <= _STREAMS[-1]:
            held.append(os.open(os.devnull, os.O_RDWR))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def _stream(number: int) -> int | None:
    """What a child gets as a standard stream: this process's own, if it is open."""
    try:
        return None if os.get_inheritable(number) else subprocess.DEVNULL
    except OSError:  # closed
        return subprocess.DEVNULL


def exit_text(code: int | None) -> str:
    """Describe how a process ended, by its exit code."""
    if code is None:
        return "did not end, though it was killed"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def end_with_parent(descriptor: int, parent: int) -> None:
    """Make this process end when process `parent` has ended.

    Args:
        descriptor: A pipe that carries no data; its other end closes when the parent ends.
        parent: Process id of the parent.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while os.getppid() == parent and not poll.poll(_LOOK_S * 1000):
            pass
        os._exit(1)

    _kill_at_end(descriptor)
    threading.Thread(target=watch, name="windrow-watch", daemon=True).start()


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which `started` has blocked, to the parent: the user means the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _flags() -> list[str]:
    found = [letter for name, letter in _FLAGS.items() if getattr(sys.flags, name)]
    found += ["-O"] * sys.flags.optimize
    found += [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        found += ["-X", name if value is True else f"{name}={value}"]
    return found


def _kill_at_end(descriptor: int) -> None:
    """Make Linux kill this process when the pipe's other end closes.

    The watching thread needs the interpreter lock, which native code may never release.
    """
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
