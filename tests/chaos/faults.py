"""What is done to trainers, workers, the server, the cache and its disk.

A fault is a function of a `Site` and a source of random numbers. It returns how to end the fault, or
None if it ends by itself; it raises `NotNowError` where there is nothing that it could harm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from tests.chaos.life import Trainer
from tests.chaos.server import StoreServer
from tests.processes import workers

Undo = Callable[[], None]

_DISK_BYTES: Final = 12 << 20
# The third worker that ends over the same work is an error.
_MOST_KILLED: Final = 2
USUAL_SHARE: Final = 0.03
"""Requests that fail while nothing else is wrong with the store."""


class NotNowError(Exception):
    """There is nothing that the fault could harm."""


class Disk:
    """A small file system in memory for the cache; where it cannot be mounted, a folder that is never full."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._ballast = folder / "ballast"
        size = f"size={_DISK_BYTES}"
        command = ["mount", "-t", "tmpfs", "-o", size, "chaos", str(folder)]
        with contextlib.suppress(OSError):
            subprocess.run(command, check=False, capture_output=True)
        self.is_small = os.path.ismount(folder)

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return self.folder / "cache"

    def fill(self) -> None:
        """Leave no room."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self) -> None:
        """Make room again."""
        self._ballast.unlink()

    def close(self) -> None:
        """Unmount it."""
        if self.is_small:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """All that faults are for."""

    server: StoreServer
    disk: Disk
    trainers: Sequence[Trainer]

    def running(self) -> list[Trainer]:
        """The trainers that have not ended."""
        found = [trainer for trainer in self.trainers if trainer.code() is None]
        if not found:
            raise NotNowError
        return found


def kill_worker(site: Site, draw: random.Random) -> None:
    """`kill -9` of a worker process."""
    some = [trainer for trainer in site.running() if trainer.killed[trainer.lap] < _MOST_KILLED]
    trainer, worker = _worker(some, draw)
    with _if_it_runs():
        worker.kill()
    trainer.killed[trainer.lap] += 1


def stop_worker(site: Site, draw: random.Random) -> Undo:
    """SIGSTOP of a worker process, then SIGCONT."""
    _, worker = _worker(site.running(), draw)
    with _if_it_runs():
        worker.suspend()

    def undo() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()

    return undo


def stop_trainer(site: Site, draw: random.Random) -> Undo:
    """SIGSTOP of a training process, then SIGCONT."""
    trainer = draw.choice(site.running())
    trainer.send(signal.SIGSTOP)
    return lambda: trainer.send(signal.SIGCONT)


def kill_trainer(site: Site, draw: random.Random) -> None:
    """`kill -9` of a training process. The others of its life are ended, too."""
    trainers = site.running()
    if draw.random() < 0.9 and not all(trainer.has_checkpoint for trainer in site.trainers):
        raise NotNowError  # the run would never get on
    draw.choice(trainers).send(signal.SIGKILL)


def stop_server(site: Site, draw: random.Random) -> Undo:
    """SIGSTOP of the server, then SIGCONT."""
    site.server.send(signal.SIGSTOP)
    return lambda: site.server.send(signal.SIGCONT)


def kill_server(site: Site, draw: random.Random) -> Undo:
    """`kill -9` of the server, which is started again later."""
    if not all(trainer.is_open for trainer in site.trainers):
        raise NotNowError  # opening a source does not wait for a store
    site.server.count()
    site.server.kill()
    return site.server.start


def fail_server(site: Site, draw: random.Random) -> Undo:
    """Many answers of the server are faults."""
    site.server.fail(share=draw.choice([0.1, 0.3]), seed=draw.randrange(2**32))
    return lambda: site.server.fail(share=USUAL_SHARE, seed=draw.randrange(2**32))


def fill_disk(site: Site, draw: random.Random) -> Undo:
    """The disk of the cache is full, then has room again."""
    if not site.disk.is_small:
        raise NotNowError
    site.disk.fill()
    return site.disk.empty


def damage_cache(site: Site, draw: random.Random) -> None:
    """Files of the cache are overwritten, cut or removed, or its folder is removed."""
    files = sorted(path for path in site.disk.cache.glob("*") if path.is_file())
    if not files:
        raise NotNowError
    if draw.random() < 0.1:
        shutil.rmtree(site.disk.cache, ignore_errors=True)
        return
    for path in draw.sample(files, min(len(files), 5)):
        with contextlib.suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
            at = draw.randrange(os.fstat(file.fileno()).st_size + 1)
            match draw.choice(["overwrite", "overwrite", "cut", "remove"]):
                case "overwrite":
                    _overwrite(file.fileno(), at, draw.randbytes(3000))
                case "cut":
                    file.truncate(at)
                case _:
                    path.unlink()


def _overwrite(number: int, at: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.pwrite(number, data, at)


def _worker(trainers: Sequence[Trainer], draw: random.Random) -> tuple[Trainer, psutil.Process]:
    found = [
        (trainer, worker)
        for trainer in trainers
        for worker in (workers(trainer.pid) if trainer.code() is None else [])
    ]
    if not found:
        raise NotNowError
    return draw.choice(found)


@contextlib.contextmanager
def _if_it_runs() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess as error:
        raise NotNowError from error


# By name: what is done, and to what. Of faults that last, one at a time is done to the same thing.
FAULTS: Final[dict[str, Callable[[Site, random.Random], Undo | None]]] = {
    "kill-worker": kill_worker,
    "stop-worker": stop_worker,
    "stop-trainer": stop_trainer,
    "kill-trainer": kill_trainer,
    "stop-server": stop_server,
    "kill-server": kill_server,
    "fail-server": fail_server,
    "fill-disk": fill_disk,
    "damage-cache": damage_cache,
}
JUMP_CLOCK: Final = "jump-clock"
"""The trainers do this to themselves: `time.time` is a fake that jumps."""
