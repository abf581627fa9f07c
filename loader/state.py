"""State: what an iterator needs to resume, and how a state of another chain is recognized.

A state is JSON: the position (a few integers), the chain's fingerprint, and a description of
the chain for the message that refuses the state elsewhere. It holds no data and no count of threads, workers or hosts.

Invariant: under 1 kB for every chain, and the same for the same step of the same chain and data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from typing import Any

from windrow.errors import StateError
from windrow.transforms.nodes import Node, described, fingerprint, function_names

VERSION = 1
_WORDS = 500  # characters of JSON, of the chain's description that a state keeps


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """What makes a state belong to a chain: its nodes and data, and the names of its functions."""

    fingerprint: str
    functions: str
    chain: str
    width: int

    @classmethod
    def of(cls, node: Node) -> Identity:
        """The identity of a chain."""
        names = hashlib.sha256("\n".join(function_names(node)).encode()).hexdigest()[:8]
        chain = described(node)
        return cls(fingerprint(node), names, _shortened(chain), node.width)

    def state(self, position: list[int]) -> dict[str, Any]:
        """The state of an iterator at a position."""
        return {
            "version": VERSION,
            "position": position,
            "fingerprint": self.fingerprint,
            "functions": self.functions,
            "chain": self.chain,
        }

    def position(self, state: Any) -> list[int]:
        """Return the position in a state of this chain, or in Grain's state of an equal chain.

        Raises:
            StateError: If the state is invalid, or belongs to another chain or other data.
        """
        state = _parsed(state)
        if set(state) == {"next_index"} and self.width == 1:
            return _checked([state["next_index"]], 1)
        if not {"version", "position", "fingerprint"} <= set(state):
            raise StateError(
                f"not a state of a Windrow iterator: it has the keys {sorted(map(str, state))}, but"
                " needs version, position and fingerprint. Pass the value that get_state() returned."
                " (A state of Grain, {'next_index': n}, is only for a chain whose position is one"
                " number.)"
            )
        if state["version"] != VERSION:
            raise StateError(
                f"state has version {state['version']!r}, this Windrow reads version {VERSION};"
                " restore it with the Windrow that wrote it"
            )
        if state["fingerprint"] != self.fingerprint:
            raise StateError(
                "the state was taken over another chain or other data\n"
                f"  state:    {state.get('chain', '?')} [{state['fingerprint']}]\n"
                f"  this run: {self.chain} [{self.fingerprint}]\n"
                "Restore with the chain and data it was taken from, or start without a state."
            )
        if state.get("functions") != self.functions:
            warnings.warn(
                "functions of the chain have other names than when the state was taken; the"
                " stream resumes at the same place, with the functions of this run",
                stacklevel=3,
            )
        return _checked(state["position"], self.width)


def _shortened(chain: str) -> str:
    """Leave out the middle of `chain` if it takes more than `_WORDS` characters of JSON."""
    kept, half = chain, _WORDS // 2
    while len(json.dumps(kept)) > _WORDS:
        kept = f"{chain[:half]} ... {chain[len(chain) - half :]}"
        half = half * 3 // 4
    return kept


def _parsed(state: Any) -> dict[str, Any]:
    if isinstance(state, (bytes, bytearray, str)):
        try:
            state = json.loads(state)
        except ValueError:
            raise StateError(f"state is not JSON: {state[:80]!r}") from None
    if not isinstance(state, dict):
        raise StateError(f"state must be a dict, as get_state() gives, got {type(state).__name__}")
    return state


def _checked(position: Any, size: int) -> list[int]:
    whole = isinstance(position, (list, tuple)) and len(position) == size
    if not whole or not all(type(n) is int and 0 <= n < 2**63 for n in position):
        raise StateError(
            f"state has position {position!r}; a position of this chain is {size} integers of at"
            " least 0 and below 2**63. The state is damaged: restore another one."
        )
    return list(position)
