"""A request for each record, one after another on one connection, as readers do that know no batches.

Where records lie is known before the clock starts.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import zstandard

from benchmarks import chunks, functions
from benchmarks.job import Job, Options, Work


def options(_: Job) -> Options:
    """There is nothing to choose."""
    return {}


def far_records(job: Job) -> Work:
    """Single records, each a batch of its own; a global shuffle, whatever the order of the case is."""
    places = chunks.places(job.path, job.records).tolist()
    order = job.data.order(job.layout, "global shuffle").tolist()

    def opened() -> Iterator[Any]:
        connection = http.client.HTTPConnection("127.0.0.1", job.server.port)
        decoder = zstandard.ZstdDecompressor()
        for index in order:
            begin, end = places[index], places[index + 1]
            asked = {"Range": f"bytes={begin}-{end - 1}"}
            connection.request("GET", f"/{job.stored_layout}", headers=asked)
            stored = connection.getresponse().read()
            yield functions.decode_many([chunks.record(stored, begin, decoder)])

    return Work(opened, mapped=True, server=job.server)
