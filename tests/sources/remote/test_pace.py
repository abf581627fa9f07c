"""How many requests a store gets at a time, from the times and refusals of its answers."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.limits import CALM, DATA
from tests.processes import until
from tests.range_server import RangeServer
from windrow.core.redaction import Redaction
from windrow.errors import PlanError
from windrow.sources import RemoteOptions
from windrow.sources.remote.faults import RequestError, status_fault
from windrow.sources.remote.fetcher import ByteRange, Fetcher
from windrow.sources.remote.outages import Outages
from windrow.sources.remote.pace import RequestPace, StoreRequests
from windrow.sources.remote.request_counts import RemoteStats, request_figures
from windrow.sources.zarr import in_flight


def rounds(
    pace: RequestPace,
    count: int,
    took_s: Callable[[int], float],
    *,
    size_bytes: int = 1000,
    waited: bool = True,
) -> list[int]:
    """The numbers after rounds in which as many requests as allowed begin, and then are answered.

    `took_s` gives the time of an answer by the number of requests in flight.
    """
    numbers = []
    for _ in range(count):
        at_once = pace.number
        began = [pace.began(at, waited=waited) for at in range(1, at_once + 1)]
        for one in began:
            pace.answered(one, took_s(at_once), size_bytes)
        numbers.append(pace.number)
    return numbers


def constant(took_s: float) -> Callable[[int], float]:
    return lambda _: took_s


def learnt(most: int = 64) -> RequestPace:
    """A pace of a store that answers in 20 ms."""
    pace = RequestPace(most)
    assert set(rounds(pace, 5, constant(0.02))) == {most}
    return pace


def test_a_store_of_even_speed_keeps_the_number() -> None:
    draw = random.Random(3)
    pace = RequestPace(64)
    assert set(rounds(pace, 200, lambda _: 0.02 * draw.uniform(0.7, 1.5))) == {64}


def refusing(pace: RequestPace, refused: int) -> int:
    """The number after a round of requests, of which so many are refused."""
    began = [pace.began(at) for at in range(1, pace.number + 1)]
    for place, one in enumerate(began):
        if place < refused:
            pace.refused(one)
        else:
            pace.answered(one, 0.02, 1000)
    return pace.number


def test_refusals_lower_it_by_half_their_share() -> None:
    pace = RequestPace(64)
    assert refusing(pace, 4) == 64
    assert refusing(pace, 64) == 32
    assert refusing(pace, 16) == 24
    for _ in range(100):
        pace.refused(pace.began(1))
    assert pace.number == 1


def test_refusals_of_few_requests_lower_it_to_some() -> None:
    pace = RequestPace(64)
    for _ in range(16):
        pace.refused(pace.began(1))
    assert pace.number == 8


def test_it_grows_while_requests_wait_and_the_store_keeps_up() -> None:
    pace = learnt()
    assert refusing(pace, 64) == 32
    assert rounds(pace, 10, constant(0.02), waited=False) == [32] * 10
    numbers = rounds(pace, 10, constant(0.02))
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (37, 64)


def test_a_store_with_a_queue_gets_fewer() -> None:
    """It serves 800 requests a second, and then 100: twice the usual time is 4 requests."""
    pace = learnt()
    numbers = rounds(pace, 12, lambda at_once: max(0.02, at_once / 100))
    assert numbers[:4] == [32, 16, 8, 4]
    assert max(numbers[4:]) <= 8
    healed = rounds(pace, 40, constant(0.02))
    assert healed[-1] == 64


def test_a_store_that_is_slow_for_another_reason_keeps_its_number() -> None:
    pace = learnt()
    numbers = rounds(pace, 6, constant(0.2))
    assert numbers == [32, 64, 64, 64, 64, 64]


def test_some_slow_answers_change_nothing() -> None:
    slow = itertools.cycle([2.0, *[0.02] * 9])
    assert set(rounds(learnt(), 100, lambda _: next(slow))) == {64}


def test_times_are_compared_with_those_of_requests_of_that_size() -> None:
    pace = learnt()
    assert set(rounds(pace, 5, constant(0.5), size_bytes=8 << 20)) == {64}
    assert rounds(pace, 1, constant(2.0), size_bytes=8 << 20) == [32]


def test_answers_to_requests_from_before_it_was_lowered_say_nothing() -> None:
    pace = learnt()
    began = [pace.began(at) for at in range(1, 129)]
    for one in began[:64]:
        pace.refused(one)
    for one in began[64:]:
        pace.refused(one)
        pace.answered(one, 9.0, 1000)
    assert pace.number == 32


@pytest.mark.parametrize(
    ("fault", "is_refusal"),
    [
        (status_fault(429), True),
        (status_fault(503), True),
        (status_fault(503, code="SlowDown"), True),
        (status_fault(400, code="TooManyRequests"), True),
        (status_fault(500), False),
        (RequestError("timeout", cause="network"), False),
    ],
)
def test_what_asks_for_fewer_requests(fault: RequestError, is_refusal: bool) -> None:
    assert fault.is_refusal is is_refusal


@pytest.mark.jobs
def test_a_server_that_refuses_gets_fewer_requests_and_more_when_it_is_idle() -> None:
    options = dataclasses.replace(CALM, retries=50)
    with RangeServer({"a.bin": DATA}, latency_s=0.02) as server:
        reader = Fetcher("Tests", None, options)
        file = reader.tails([server.url("a.bin")], 1)[0].file
        wanted = [ByteRange(file, n, n + 10) for n in range(200)]
        data = [DATA[one.start : one.stop] for one in wanted]
        assert _at_once(reader) == 64
        server.most_at_once = 8
        assert reader.start(wanted).result() == data
        assert _at_once(reader) < 32
        # Without a limit of its own, nearly every request of 64 at a time would be refused.
        assert reader.stats.counts()["faults"]["status 503"] < 300
        # Another source of the process keeps to the number.
        other = Fetcher("Tests", None, options)
        assert other.start(wanted[:4]).result() == data[:4]
        assert _at_once(other) < 32
        assert request_figures([RemoteStats(), reader.stats])["at_once"] == _at_once(reader)
        server.most_at_once = None
        assert until(lambda: reader.start(wanted).result() == data and _at_once(reader) == 64)


def _at_once(reader: Fetcher) -> int:
    number: int = reader.stats.counts()["at_once"]
    return number


def test_all_sources_together_keep_to_the_limit_of_a_host() -> None:
    options = RemoteOptions(max_requests_per_host=5)
    with RangeServer({"a.bin": DATA}, latency_s=0.01) as server:
        readers = [Fetcher("Tests", None, options) for _ in range(3)]
        file = readers[0].tails([server.url("a.bin")], 1)[0].file
        wanted = [ByteRange(file, n, n + 10) for n in range(20)]
        server.gather(5)
        running = [reader.start(wanted) for reader in readers]
        data = [DATA[one.start : one.stop] for one in wanted]
        assert [one.result() for one in running] == [data] * 3
        assert server.counts().most_in_flight == 5
        assert readers[0].stats.counts()["at_once"] == 5


def test_a_source_with_a_lower_limit_does_not_stall_others() -> None:
    """Requests under a bound of 2 wait for each other; requests under a bound of 4 do not wait for them."""

    async def run() -> None:
        requests, began = StoreRequests("http://a"), list[str]()

        async def begin(name: str, most: int) -> None:
            await requests.take(most)
            began.append(name)

        async def begun(*names: str) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            assert began == [*names]

        tasks = [asyncio.ensure_future(begin(f"low {n}", 2)) for n in range(3)]
        await begun("low 0", "low 1")
        tasks += [asyncio.ensure_future(begin(f"high {n}", 4)) for n in range(3)]
        await begun("low 0", "low 1", "high 0", "high 1")  # which are 4
        requests.give(4)
        await begun("low 0", "low 1", "high 0", "high 1", "high 2")
        tasks[2].cancel()
        late = asyncio.ensure_future(begin("low 3", 2))
        requests.give(2)
        await begun("low 0", "low 1", "high 0", "high 1", "high 2", "low 3")
        # One that is cancelled just as it may begin leaves its place to the next one.
        one, two = (asyncio.ensure_future(begin(name, 2)) for name in ("one", "two"))
        await begun(*began)
        requests.give(2)
        one.cancel()
        await begun("low 0", "low 1", "high 0", "high 1", "high 2", "low 3", "two")
        assert requests.in_flight == 4
        await asyncio.gather(*tasks, late, one, two, return_exceptions=True)

    asyncio.run(run())


def test_requests_that_wait_for_a_slow_store_begin_in_their_order() -> None:
    async def run() -> None:
        requests, began = StoreRequests("http://a"), list[int]()
        for _ in range(64):
            requests.pace.refused(requests.pace.began(1))
        assert requests.pace.number == 1

        async def begin(name: int, most: int) -> None:
            await requests.take(most)
            began.append(name)

        tasks = [asyncio.ensure_future(begin(n, most)) for n, most in enumerate((8, 2, 8, 2))]
        for count in range(1, 5):
            for _ in range(5):
                await asyncio.sleep(0)
            assert began == list(range(count))
            requests.give((8, 2, 8, 2)[count - 1])
        await asyncio.gather(*tasks)

    asyncio.run(run())


class SlowingStore:
    """Reads of TensorStore over a store that answers all reads in flight after a time by their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.took_s, self.most = 0.0, constant(0.02), 0
        self.reads: list[Future[int]] = []
        self.stats = RemoteStats()
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=time.sleep)
        monkeypatch.setattr(in_flight, "time", clock)
        outages = Outages("Tests", RemoteOptions(), self.stats, Redaction({}))
        self.limiter = in_flight.InFlightLimiter(RemoteOptions(), self.stats, outages)

    def begin(self) -> Future[int]:
        self.reads.append(Future())
        return self.reads[-1]

    def numbers(self, count: int) -> list[int]:
        """How many reads are in flight in each round, until `count` of them have ended."""
        answers = [
            self.limiter.start(self.begin, size_bytes=1000, where="http://a/b")
            for _ in range(count)
        ]
        found = []
        while self.reads:
            reads, self.reads = self.reads, []
            found.append(len(reads))
            self.now_s += self.took_s(len(reads))
            for read in reads:
                read.set_result(1)
        assert [answer.result(timeout=60) for answer in answers] == [1] * count
        return found


def test_a_slow_store_gets_fewer_reads_of_tensorstore(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowingStore(monkeypatch)
    assert store.numbers(1000)[:7] == [128] * 7
    assert store.stats.counts()["at_once"] == 64
    store.took_s = lambda at_once: max(0.02, at_once / 200)
    slow = store.numbers(1000)
    assert slow[:6] == [128, 128, 64, 64, 32, 32]
    assert max(slow[9:]) <= 20
    assert store.stats.counts()["at_once"] <= 20
    store.took_s = constant(0.02)
    assert store.numbers(3000)[20:-1] == [128] * 12


def test_refused_reads_of_tensorstore_count_again_when_they_are_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_flight, "_watch", lambda limiter: None)  # the test calls `expire`
    store = SlowingStore(monkeypatch)
    store.limiter.expect()
    answers = [store.limiter.start(store.begin, where="http://a/b") for _ in range(128)]
    numbers = []
    for _ in range(4):
        reads, store.reads = store.reads, []
        assert len(reads) == 128
        for read in reads:
            read.set_exception(OSError("UNAVAILABLE: HTTP code 503"))
        numbers.append(store.stats.counts()["at_once"])
        store.now_s += RemoteOptions().max_backoff_s
        assert store.limiter.expire()
    assert numbers == [64, 32, 16, 8]
    for read in store.reads:
        read.set_result(1)
    assert [answer.result(timeout=60) for answer in answers] == [1] * 128


def test_the_limit_of_a_host_is_checked() -> None:
    with pytest.raises(PlanError, match="max_requests_per_host must be at least 1, got 0"):
        RemoteOptions(max_requests_per_host=0)
