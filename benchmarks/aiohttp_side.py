"""Requests of aiohttp with nothing around them: what a loop written for one store comes to.

An event loop in a thread, a session, and a bound of what is in flight; no faults are expected, and
nothing is checked or merged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from benchmarks import chunks, expert, far, functions
from benchmarks.job import Job, Metrics, Options, Work

_TAIL_BYTES = 128 << 10


def options(job: Job) -> Options:
    """Batches under way at a time."""
    return {f"{depth} ahead": depth for depth in ((2,) if job.small else (1, 4))}


def far_records(job: Job, ahead: int) -> Work:
    """A request for each record of a batch, all at once, and the records decoded."""
    places = chunks.places(job.path, job.records).tolist()

    def opened() -> Iterator[Any]:
        decoder = zstandard.ZstdDecompressor()
        with _session() as (get, loop):

            async def batch(ids: list[int]) -> list[bytes]:
                asked = (f"bytes={places[i]}-{places[i + 1] - 1}" for i in ids)
                found: list[bytes] = await asyncio.gather(*(get(job.url, one) for one in asked))
                return found

            def submit(ids: Any) -> Callable[[], Any]:
                wanted = ids.tolist()
                coming = asyncio.run_coroutine_threadsafe(batch(wanted), loop)

                def rows() -> Any:
                    pairs = zip(coming.result(), wanted, strict=True)
                    return functions.decode_many(
                        [chunks.record(stored, places[i], decoder) for stored, i in pairs]
                    )

                return rows

            yield from expert.in_flight(submit, job.batches, ahead)

    return Work(opened, mapped=True, server=job.server)


def far_files(job: Job) -> Metrics:
    """The end of every file, which has its index."""
    urls = [f"{job.url}/{job.data.far.file_name(number)}" for number in range(job.data.far.files)]
    job.server.reset()
    start_s = time.perf_counter()
    with _session() as (get, loop):

        async def tails() -> None:
            await asyncio.gather(*(get(url, f"bytes=-{_TAIL_BYTES}") for url in urls))

        asyncio.run_coroutine_threadsafe(tails(), loop).result()
        took_s = time.perf_counter() - start_s
    return {"open_ms": took_s * 1e3, "requests": job.server.served().requests}


@contextlib.contextmanager
def _session() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """How to get bytes of a URL, and the loop to do it in."""
    import aiohttp  # not everybody has it

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def opened() -> Any:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=far.REQUESTS))

    session = asyncio.run_coroutine_threadsafe(opened(), loop).result()

    async def get(url: str, bounds: str) -> bytes:
        async with session.get(url, headers={"Range": bounds}) as answer:
            answer.raise_for_status()
            found: bytes = await answer.read()
        return found

    async def closed() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await session.close()

    try:
        yield get, loop
    finally:
        asyncio.run_coroutine_threadsafe(closed(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
