"""Locks: one run at a time writes a target.

A local folder is locked by a file lock, which ends with the process that holds it. An object store
has no locks. There a run leaves a lease, a small object that names it, and another run refuses to
begin until the lease is gone or is taken over.

A pipeline of the user, which no process of ours waits for, holds a lease on a local folder too.

Invariant: if several runs begin at once, at most one gets the lock; files of a killed run never
block a local folder, and block an object store only until `take_over`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import uuid
from collections.abc import Iterator
from typing import Final

import filelock

from windrow.converters.job.targets import WORK, LocalTarget, Target, unwritable
from windrow.errors import ConversionError, WindrowError

LOCK_NAME: Final = "lock"
LEASE_NAME: Final = "lease.json"
LEASE: Final = f"{WORK}/{LEASE_NAME}"
# A run that ends removes its lock file; who opened that file just before has to open the next.
_TRIES: Final = 5


@contextlib.contextmanager
def locked(target: Target, *, take_over: bool) -> Iterator[str | None]:
    """Hold the lock of `target`; the token of the lease, if it is held by one.

    Args:
        target: The folder to be written.
        take_over: Whether to end the lease of another run, which must be dead; the locks of local
            folders end by themselves.

    Raises:
        ConversionError: If another run holds it.
    """
    if isinstance(target, LocalTarget):
        with locked_here(target):
            if take_over:
                target.remove([LEASE])
            elif _token(target) is not None:
                raise _refused(target)
            yield None
        return
    token = uuid.uuid4().hex
    take_lease(target, token, take_over=take_over)
    try:
        yield token
    finally:
        # If the store cannot be reached any more, the work in the context raises the error.
        with contextlib.suppress(WindrowError):
            release_lease(target, token)


@contextlib.contextmanager
def locked_here(target: Target) -> Iterator[None]:
    """Keep other runs on this machine from a local folder; no other target has such a lock."""
    if not isinstance(target, LocalTarget):
        yield
        return
    path = target.own(f"{WORK}/{LOCK_NAME}")
    lock = _acquired(target, path)
    try:
        yield
    finally:
        # Removed while it is held: no other run can take a lock on a file that has lost its name.
        with contextlib.suppress(OSError):
            os.remove(path)
            os.rmdir(os.path.dirname(path))
        lock.release()


def _acquired(target: LocalTarget, path: str) -> filelock.BaseFileLock:
    refused: OSError | None = None
    for _ in range(_TRIES):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            lock = filelock.FileLock(path, blocking=False)
            lock.acquire()
        except filelock.Timeout as error:
            refused = error
        except FileNotFoundError as error:  # another run has just ended and cleared up
            refused = error
        except OSError as error:
            raise unwritable(target.url, error) from error
        else:
            return lock
    if isinstance(refused, FileNotFoundError):
        raise unwritable(target.url, refused) from refused
    raise ConversionError(
        f"output {target.url}: another run is writing this folder (it holds {path}); wait for"
        " it, or stop it: what it has finished is kept"
    ) from refused


def take_lease(target: Target, token: str, *, take_over: bool) -> None:
    """Leave a lease that is named `token`. It may be called twice. Raises as `locked`."""
    if has_lease(target, token):
        return
    lease = {
        "token": token,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    data = json.dumps(lease).encode()
    if take_over:
        target.write(LEASE, data)
    # The lease is read back: not every store can create a file only if it is not there.
    elif not target.create(LEASE, data) or not has_lease(target, token):
        raise _refused(target)


def has_lease(target: Target, token: str) -> bool:
    """Return whether the lease on `target` is the one that is named `token`."""
    return _token(target) == token


def release_lease(target: Target, token: str) -> None:
    """Remove the lease that is named `token`, if it is still there."""
    if has_lease(target, token):
        target.remove([LEASE])


def check_lease(target: Target, token: str) -> None:
    """Refuse to continue if another run has taken the lease over.

    Raises:
        ConversionError: If the lease of `target` does not have this `token`.
    """
    if _token(target) != token:
        raise ConversionError(
            f"output {target.shown()}: another run has taken it over ({_holder(target)}); this run"
            " ends here"
        )


def _refused(target: Target) -> ConversionError:
    return ConversionError(
        f"output {target.shown()}: another run is writing it ({_holder(target)}); wait for it, or,"
        " if it is dead, resume in its place with take_over=True (--take-over)"
    )


def _token(target: Target) -> str | None:
    """Return the token of the lease; None without a lease, empty if it is damaged."""
    match _lease(target):
        case None:
            return None
        case {"token": str(token)}:
            return token
        case _:
            return ""


def _holder(target: Target) -> str:
    match _lease(target):
        case {"host": str(host), "process": int(process), "since": str(since)}:
            holder = f"process {process} on {host}, since {since}"
            return "".join(letter for letter in holder[:200] if letter.isprintable())
        case _:
            return f"it holds {LEASE}"


def _lease(target: Target) -> object | None:
    """Return the content of the lease; None without one. A damaged lease is still a lease."""
    data = target.read(LEASE)
    if data is None:
        return None
    try:
        return json.loads(data) or {}
    except (ValueError, RecursionError):
        return {}
