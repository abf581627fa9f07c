"""How many requests a store gets at a time, from the times and refusals of its answers."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.limits import CALM, DATA
from tests.processes import until
from tests.range_server import RangeServer
from windrow.errors import PlanError
from windrow.sources import RemoteOptions
from windrow.sources.remote.fetcher import ByteRange, Fetcher
from windrow.sources.remote.pace import RequestPace, StoreRequests
from windrow.sources.remote.request_counts import RemoteStats, request_figures


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


def test_the_limit_of_a_host_is_checked() -> None:
    with pytest.raises(PlanError, match="max_requests_per_host must be at least 1, got 0"):
        RemoteOptions(max_requests_per_host=0)
