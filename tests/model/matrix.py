"""Every method after every method, as programs: `python -m tests.model.matrix --write` pins what is refused.

Of both datasets, in streams with lanes and without, over and under mixtures, zips and interleavings, and
after a shard. `refused.txt` has the methods that Windrow refuses after each one though the pages give
them a meaning; without `--write` the command shows the messages.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.model import programs
from tests.model.methods import (
    ALIKE,
    MAKE_STREAMS,
    MAP,
    MAPS,
    OF_LENGTHS,
    STREAM,
    STREAMS,
    filled,
    over,
)

REFUSED: Final = Path(__file__).with_name("refused.txt")
NUMBERS: Final = ("MapDataset.source(numbers(13))", "MapDataset.source(numbers(6))")
ROWS: Final = ("MapDataset.source(ragged(9))", "MapDataset.source(ragged(4))")
STARTS: Final = {
    "map": "",
    "stream": ".to_iter_dataset()",
    "lanes": ".to_iter_dataset(lanes=2)",
}
# The last size of a batch is divided among 2, 4 and 8 processes.
SHARDS: Final = {
    "shard of map": ".batch(8).shard(index, count)",
    "shard of stream": ".to_iter_dataset().batch(8).shard(index, count)",
    "shard of lanes": ".to_iter_dataset(lanes=8).batch(8).shard(index, count)",
}


def after(parts: tuple[str, str], name: str, *, stream: bool) -> tuple[str, str]:
    """Two datasets with one more method, or the two of which each is made."""
    one, other = parts
    methods, several = (STREAM, STREAMS) if stream else (MAP, MAPS)
    if name in methods:
        return one + filled(methods[name]), other + filled(methods[name])
    return over(several[name], one, other), over(several[name], other, one)


def cases() -> Iterator[tuple[str, dict[str, str]]]:
    """Lines of the matrix: what comes first, and programs by the method that comes next."""
    for context, start in {**STARTS, **SHARDS}.items():
        is_stream = "to_iter" in start
        for name in (*STREAM, *STREAMS) if is_stream else (*MAP, *MAPS):
            one, other = ROWS if name in OF_LENGTHS else NUMBERS
            made = after((one + start, other + start), name, stream=is_stream)
            ends_in_stream = is_stream or name in MAKE_STREAMS
            then = [*STREAM, *STREAMS] if ends_in_stream else [*MAP, *MAPS]
            texts = {n: after(made, n, stream=ends_in_stream)[0] for n in then if n not in ALIKE}
            yield f"{context}: {name}", texts if context in STARTS else {"": made[0]}


LINES: Final = dict(cases())


def looked_at(line: str) -> tuple[list[str], dict[str, str]]:
    """The programs of a line that differ from the model, and messages of those that are refused."""
    wrong, refused = [], {}
    logging.disable(logging.WARNING)
    try:
        for name, text in LINES[line].items():
            problem, messages = programs.compared(text)
            if problem:
                wrong.append(f"{text}\n  {problem}")
            if messages:
                counts = "" if 1 in messages else f"in {'/'.join(map(str, messages))} processes"
                refused[f"{name} {counts}".strip()] = next(iter(messages.values()))
    finally:
        logging.disable(logging.NOTSET)
    return wrong, refused


def pinned() -> dict[str, str]:
    """What `refused.txt` says for each line."""
    lines = REFUSED.read_text().splitlines()
    return dict(line.split(" -> ") for line in lines)


def main() -> int:
    """Write what is refused, or show the messages."""
    found = {line: looked_at(line) for line in LINES}
    if "--write" in sys.argv[1:]:
        lines = [
            f"{line} -> {', '.join(refused)}\n" for line, (_, refused) in found.items() if refused
        ]
        REFUSED.write_text("".join(lines))
        return 0
    for line, (wrong, refused) in found.items():
        print(*wrong, *(f"{line} -> {name}: {text}" for name, text in refused.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
