"""An S3 store on loopback, for tests: moto's server, and a proxy before it through which faults come.

Each store has a bucket of its own in the one server of the process, so that tests do not meet.

    with ObjectStore() as store:
        store.put("a.bin", data)
        store.faults.plan([s3_error(503, "SlowDown"), None])
        fsspec.open(store.url("a.bin"), **store.storage_options)
"""

from __future__ import annotations

import functools
import http.client
import itertools
import logging
import os
import urllib.parse
from typing import Any

from tests.range_server import RangeServer

_numbers = itertools.count()


@functools.cache
def _moto_port() -> int:
    """The port of moto's server, which runs until the process ends."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return int(server.get_host_and_port()[1])


class ObjectStore:
    """A bucket, with `faults` between it and who reads: counts and plans as of `RangeServer`."""

    def __init__(self) -> None:
        """Make the bucket. Nothing is served before `with`."""
        self._port = _moto_port()
        self.bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
        self.faults = RangeServer(upstream=f"http://127.0.0.1:{self._port}")
        self._ask("PUT", f"/{self.bucket}")

    def __enter__(self) -> ObjectStore:
        self.faults.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.close()

    @property
    def storage_options(self) -> dict[str, Any]:
        """For s3fs. The key and the secret are texts that no error may show."""
        return {
            "key": "AKIDNOTTOBESEEN",
            "secret": "secret-not-to-be-seen",
            "endpoint_url": self.faults.address,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def put(self, key: str, data: bytes) -> None:
        """A new object, or another one in its place."""
        self._ask("PUT", f"/{self.bucket}/{urllib.parse.quote(key)}", data)

    def remove(self, key: str) -> None:
        """The object is there no more."""
        self._ask("DELETE", f"/{self.bucket}/{urllib.parse.quote(key)}")

    def url(self, key: str = "") -> str:
        """Its URL for fsspec."""
        return f"s3://{self.bucket}/{key}"

    def _ask(self, method: str, path: str, body: bytes = b"") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        # moto looks the account up by the key it reads here; it checks no signature.
        scope = "20260101/us-east-1/s3/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential=AKIDNOTTOBESEEN/{scope}"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status}"
        finally:
            connection.close()
