"""Random values: one independent stream of random numbers per seed and element.

Invariant: the generator of an element depends on the seed and the element's index alone, not on
what was drawn before. Grain's `random_map` gives the same values: Philox, with a key from the seed
and a counter that starts at the index.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class IndexedRandom:
    """Random generators by index, for one seed.

    One generator serves all indices, since setting its state is several times as fast as making
    another. So a generator is valid until the next `at`, and an object is for one thread only:
    make one per thread or per call.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._counter = np.zeros(4, np.uint64)
        self._bits = np.random.Philox(key=philox_key(seed))
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state
        self._state["state"]["counter"] = self._counter

    def __reduce__(self) -> tuple[type[IndexedRandom], tuple[int]]:
        return IndexedRandom, (self.seed,)

    def at(self, index: int) -> np.random.Generator:
        """Return the generator of the element at `index`, in its initial state.

        Args:
            index: Any integer; only its remainder modulo 2**64 counts.
        """
        self._counter[3] = index % 2**64
        self._bits.state = self._state
        return self._generator


def generator_at(seed: int, index: int) -> np.random.Generator:
    """A generator of its own that gives the values of `IndexedRandom(seed).at(index)`."""
    counter = np.array([0, 0, 0, index % 2**64], np.uint64)
    return np.random.Generator(np.random.Philox(key=philox_key(seed), counter=counter))


@functools.lru_cache(maxsize=256)
def philox_key(seed: int) -> npt.NDArray[np.uint64]:
    """The Philox key of a seed: uint64 `(2,)`, read-only."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64).astype(np.uint64)
    key.setflags(write=False)  # it is shared
    return key


def default_seed(pairs: Sequence[tuple[int, int]]) -> int:
    """Derive the seed of a node without one from the seeds set earlier in its chain.

    Args:
        pairs: At least one: each seed, with the number of nodes from the node to where it was set; nearest
            first.

    Returns:
        An integer in `[0, 2**32)`.
    """
    words = [word for pair in pairs for word in pair]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint32)[0])
