"""Read the same records from the disk and from a URL: the same batches and states, in few requests.

    python examples/read_far_away.py

1. A small HTTP server on this machine plays the remote store: it serves byte ranges of files, takes
   20 ms for each request, and can fail one in ten of them. No account and no network are needed.
2. Windows of a month of ERA5 (examples/data) are written as ArrayRecord files, a record each. The Zarr
   array that they come from is served alongside them.
3. A chain reads them from the disk and from the URL. The batches must be the same, and a state that
   was taken over the disk resumes over the URL.
4. What each order asks of the store: one by one, shuffled globally, and shuffled in blocks; then with
   requests that fail, which must change nothing but the time.
"""

import argparse
import http.server
import itertools
import pathlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from array_record.python.array_record_module import ArrayRecordWriter

import windrow
from windrow.sources import ArrayRecordDataSource, Field, RemoteOptions, WindowDataSource

STORE = pathlib.Path(__file__).parent / "data" / "era5_uk_t2m_2019_03.zarr"
WINDOW = {"t2m": Field("t2m", {"time": [-12, -6, 0, 6]})}  # hours
FILES = [f"era5-{number:05d}-of-00004.array_record" for number in range(4)]
BATCH, SEED = 32, 42
RESUME_AT = 3  # batches
ONE_BY_ONE = 64  # records
# By default retries wait longer, which a busy store needs.
REMOTE = RemoteOptions(backoff_s=0.05)


# --- 1. the remote store ---------------------------------------------------------------------------


class Store(http.server.ThreadingHTTPServer):
    """A folder at a URL, served by threads; `fail_every=10` fails each tenth request."""

    daemon_threads = True
    request_queue_size = 128  # many connections come at a time

    def __init__(self, folder: pathlib.Path, latency_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.latency_s = folder.resolve(), latency_s
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.numbers, self.fail_every = itertools.count(1), 0


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests for a file or a range of its bytes."""

    protocol_version = "HTTP/1.1"  # a connection is for many requests
    disable_nagle_algorithm = True  # else each body waits for the other side to confirm its headers

    def do_GET(self) -> None:
        store: Any = self.server
        time.sleep(store.latency_s)
        number, file = next(store.numbers), (store.folder / self.path[1:]).resolve()
        if store.fail_every and number % store.fail_every == 0:
            self.answer(503)
        elif not file.is_file() or store.folder not in file.parents:
            self.answer(404)
        elif asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            data = file.read_bytes()
            first, last = asked.groups()  # "10-19" or "10-"; "-10" is the end of the file
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(int(last) + 1, len(data)) if first and last else len(data)
            self.answer(206, data[start:stop], f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.answer(200, file.read_bytes())

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes = b"", place: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if place:
            self.send_header("Content-Range", place)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no line for each request."""


# --- 2. the data -------------------------------------------------------------------------------------


def write(folder: pathlib.Path) -> None:
    """Write the Zarr group, and its windows as records of ArrayRecord files."""
    shutil.copytree(STORE, folder / "era5.zarr")
    source = WindowDataSource(folder / "era5.zarr", fields=WINDOW)
    for name, indices in zip(
        FILES, np.array_split(np.arange(len(source)), len(FILES)), strict=True
    ):
        writer = ArrayRecordWriter(str(folder / name), "group_size:1")
        for window in source.read(indices)["t2m"]:
            writer.write(window.tobytes())
        writer.close()


def decode(record: bytes) -> npt.NDArray[np.float32]:
    """A window `(hour, latitude, longitude)`, in kelvin."""
    return np.frombuffer(record, np.float32).reshape(4, 33, 49)


# --- 3. here and there -------------------------------------------------------------------------------


def array_record(place: str) -> ArrayRecordDataSource:
    """The records in a folder, or at a URL."""
    # A plain HTTP server lists no folders, so the files are named. On s3:// the folder is enough.
    return ArrayRecordDataSource([f"{place}/{name}" for name in FILES], remote=REMOTE)


def from_array_record(place: str) -> windrow.MapDataset[Any]:
    """Batches of records; `place` is a folder or a URL, and nothing else differs."""
    records = windrow.MapDataset.source(array_record(place))
    return records.shuffle(seed=SEED).map(decode).batch(BATCH)


def from_zarr(place: str) -> windrow.MapDataset[Any]:
    """The same batches; the windows are cut out of the array when needed."""
    # With names, the group need not be listed.
    source = WindowDataSource(f"{place}/era5.zarr", fields=WINDOW, names=["t2m"], remote=REMOTE)
    windows = windrow.MapDataset.source(source).shuffle(seed=SEED)
    return windows.map(lambda window: window["t2m"]).batch(BATCH)


def check_same(first: Iterable[Any], second: Iterable[Any]) -> int:
    """Return the number of batches; fail if one differs."""
    pairs = list(itertools.zip_longest(first, second))
    if not all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs):
        raise SystemExit("the batches differ")
    return len(pairs)


def read_here_and_there(here: str, there: str) -> None:
    """Compare batches from the disk, from the URL, and from the URL after resuming a disk state."""
    for name, dataset in {"ArrayRecord": from_array_record, "Zarr": from_zarr}.items():
        with (
            iter(dataset(here)) as near,
            iter(dataset(there)) as far,
            iter(dataset(there)) as moved,
        ):
            for _ in range(RESUME_AT):
                check_same([next(near)], [next(far)])
            state = near.get_state()
            if state != far.get_state():
                raise SystemExit("the states differ")
            moved.set_state(state)
            rest = list(near)
            check_same(rest, far)
            batches = RESUME_AT + check_same(rest, moved)
        print(
            f"{name:>11}: {batches} batches and the state are the same from disk and URL;", end=" "
        )
        print(f"stopped on disk after {RESUME_AT}, resumed at the URL", flush=True)


# --- 4. what it costs --------------------------------------------------------------------------------


def one_by_one(source: ArrayRecordDataSource) -> Iterator[Any]:
    """Read one record at a time, and wait for each, as a simple loop does."""
    order = np.random.default_rng(SEED).permutation(len(source))
    return (decode(source[index])[None] for index in order[:ONE_BY_ONE])


def global_shuffle(source: ArrayRecordDataSource) -> Iterator[Any]:
    """Records of a batch lie anywhere; the records of several batches are requested together."""
    return iter(windrow.MapDataset.source(source).shuffle(seed=SEED).map(decode).batch(BATCH))


def block_shuffle(source: ArrayRecordDataSource) -> Iterator[Any]:
    """Blocks of 32 neighbours come in random order, four of them mixed: one request per block."""
    records = windrow.MapDataset.source(source)
    return iter(records.block_shuffle(SEED, block=32, window_blocks=4).map(decode).batch(BATCH))


def compare(store: Store) -> None:
    """Print the requests to the store, as the source counts them, including its opening."""
    print(f"\n{'':24} records  requests  retries    MB  records per second")
    seen: dict[Any, list[Any]] = {}
    for store.fail_every in (0, 10):
        for order in (one_by_one, global_shuffle, block_shuffle):
            start_s, source = time.perf_counter(), array_record(store.url)
            batches = list(order(source))
            seconds, counts = time.perf_counter() - start_s, source.stats()
            check_same(batches, seen.setdefault(order, batches))
            records = sum(map(len, batches))
            name = order.__name__ + (", 10% fail" if store.fail_every else "")
            print(f"{name:24} {records:7} {counts['requests']:9} {counts['retries']:8}", end=" ")
            print(f"{counts['bytes'] / 1e6:5.1f} {records / seconds:19,.0f}", flush=True)
    print("with failing requests the batches are the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency-ms", type=float, default=20, help="of each request [20]")
    args = parser.parse_args()
    if args.latency_ms < 0:
        parser.error(f"--latency-ms must be at least 0, got {args.latency_ms}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write(folder)
        with Store(folder, args.latency_ms / 1e3) as store:
            threading.Thread(target=store.serve_forever, daemon=True).start()
            read_here_and_there(str(folder), store.url)
            compare(store)
            store.shutdown()


if __name__ == "__main__":
    main()
