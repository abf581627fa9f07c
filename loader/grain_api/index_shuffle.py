"""The order of a shuffle, one index at a time, with any number of rounds.

`transforms.orders` has the orders of Windrow, for whole arrays and with four rounds. Both are Grain's.
"""

from __future__ import annotations

import functools

from windrow.errors import PlanError
from windrow.transforms.arguments import at_least, checked_seed

_WORD = 2**32


def index_shuffle(index: int, max_index: int, seed: int, rounds: int = 4) -> int:
    """The place of `index` in a random order of the integers from 0 up to `max_index`.

    With four rounds it is the order of `MapDataset.shuffle`. Grain's function gives some integers
    twice where `max_index` is 2^16, 2^18, ...; here each comes once.

    Args:
        index: In `[0, max_index]`.
        max_index: The largest integer.
        seed: In `[0, 2**32)`.
        rounds: An even number from 4 up to 1024.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If a number is out of range.

    Example:
        >>> import windrow
        >>> [windrow.experimental.index_shuffle(k, 4, seed=1, rounds=4) for k in range(5)]
        [1, 2, 3, 0, 4]
    """
    if not 4 <= rounds <= 1024 or rounds % 2:
        raise PlanError(
            f"index_shuffle: rounds must be an even integer between 4 and 1024, got {rounds!r}"
        )
    length = at_least(0, max_index, "index_shuffle: max_index") + 1
    if not 0 <= at_least(0, index, "index_shuffle: index") < length:
        raise PlanError(f"index_shuffle: index {index} is outside [0, {max_index}]")
    keys = _keys(checked_seed(seed, "index_shuffle", _WORD), rounds)
    if length == 1:
        return 0
    width = max(8, ((length - 1).bit_length() + 1) // 2)
    mask = (1 << width) - 1
    while True:  # along the cycle until it is back inside
        left, right = index >> width, index & mask
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left ^= _mixed(right, width, mask) ^ even & mask
            right ^= _mixed(left, width, mask) ^ odd & mask
        index = left << width | right
        if index < length:
            return index


def _mixed(half: int, width: int, mask: int) -> int:
    twice = half | half << width
    return (twice >> width - 1 & twice >> width - 8 ^ twice >> width - 2) & mask


@functools.lru_cache(maxsize=16)
def _keys(seed: int, count: int) -> tuple[int, ...]:
    """The first words of C++'s `std::seed_seq{seed}` ([rand.util.seedseq])."""
    words = [0x8B8B8B8B] * count
    lag = next(
        lag
        for lag, least in ((11, 623), (7, 68), (5, 39), (3, 7), ((count - 1) // 2, 0))
        if count >= least
    )
    before = (count - lag) // 2
    after = before + lag
    for k in range(count):
        here, near, far = k, (k + before) % count, (k + after) % count
        mixed = words[here] ^ words[near] ^ words[k - 1]
        mixed = 1664525 * (mixed ^ mixed >> 27) % _WORD
        added = (mixed + (1 if k == 0 else k + (seed if k == 1 else 0))) % _WORD
        words[near] = (words[near] + mixed) % _WORD
        words[far] = (words[far] + added) % _WORD
        words[here] = added
    for k in range(count):
        here, near, far = k, (k + before) % count, (k + after) % count
        mixed = (words[here] + words[near] + words[k - 1]) % _WORD
        mixed = 1566083941 * (mixed ^ mixed >> 27) % _WORD
        added = (mixed - k) % _WORD
        words[near] ^= mixed
        words[far] ^= added
        words[here] = added
    return tuple(words)
