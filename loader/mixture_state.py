"""States of mixtures with names: a part is found again by its name, also among other parts.

Invariant: a part continues after its last element that was given, or starts from its beginning. No part
loses an element.
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from typing import Any

from windrow.errors import StateError
from windrow.transforms.nodes import MixingNode, Node, Step, Tail, fingerprint

KEY = "mixture"


@dataclasses.dataclass(frozen=True, slots=True)
class NamedParts:
    """The parts of a mixture, and what else decides the stream.

    Args:
        mixture: The mixture.
        later: The nodes after it, before the last batch, from the mixture on.
        rest: Names the chain without the parts and their weights.
    """

    mixture: MixingNode
    later: tuple[Node, ...]
    rest: str

    @classmethod
    def of(cls, tail: Tail, mixture: MixingNode) -> NamedParts:
        """The parts of the mixture that a stream ends with."""
        later: list[Node] = []
        node, text = tail.node, [mixture.rules]
        while node is not mixture:
            later.append(node)
            if node is tail.batch:
                later.clear()  # a state counts rows before it
            elif not node.is_unseen:
                text.append(f"{node.label}#{node.length}")
            node = node.parent
        rest = hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
        return cls(mixture, tuple(reversed(later)), rest)

    @property
    def parts(self) -> list[list[Any]]:
        """For each part its name, its fingerprint, and the integers of its position."""
        names = self.mixture.names or ()
        return [
            [name, fingerprint(parent), parent.width]
            for name, parent in zip(names, self.mixture.parents, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """What a state holds, to be compared by another run."""
        return {"rest": self.rest, "parts": self.parts}

    def taken_over(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """A state of a mixture of other parts or weights, as a state of this one, with a warning.

        None if it is of another chain otherwise.

        Raises:
            StateError: If a part of the same name has other data, or none has the same name.
        """
        found = state.get(KEY)
        if not isinstance(found, dict) or found.get("rest") != self.rest:
            return None
        old = _parts_in(found)
        new = {name: own for name, own, _ in self.parts}
        changed = [name for name in new if name in old and old[name][0] != new[name]]
        if changed or not set(old) & set(new):
            why = f"{_listed(changed)} has another chain or other data" if changed else "no part of"
            raise StateError(
                f"the state was taken over another mixture: {why}"
                f"{'' if changed else ' this one is in it'}\n"
                f"  state:    {_listed(old)}\n"
                f"  this run: {_listed(new)}\n"
                "Give a part with other data another name, or start without a state."
            )
        self._warn(old, new)
        lanes = state.get("lanes")
        if not isinstance(lanes, list):
            return state
        return {**state, "lanes": [lane and self._moved(list(lane), old) for lane in lanes]}

    def _warn(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        starts = [name for name in new if name not in old]
        gone = [name for name in old if name not in new]
        told = [f"new, from its beginning: {_listed(starts)}"] if starts else []
        told += [f"gone, and left out: {_listed(gone)}"] if gone else []
        told += [] if told else ["it had other weights, or another order of the parts"]
        again = [node.written for node in self.later if _holds_elements(node)]
        if again:
            told.append(f"elements that {' and '.join(again)} held when it was taken come again")
        warnings.warn(f"the state was taken over another mixture: {'; '.join(told)}", stacklevel=5)

    def _moved(self, position: list[int], old: dict[str, Any]) -> list[int]:
        """A lane's position with the integers of these parts in place of the old ones."""
        each = self.mixture.integers_of_part
        size = sum(width for _, width in old.values()) + 1 + each * len(old)
        later = sum(node.position_width for node in self.later)
        if len(position) != size + later:
            raise StateError(
                f"state has position {position}, which needs {size + later} integers for its mixture"
                f" of {_listed(old)}. The state is damaged: restore another one."
            )
        parts: dict[str, list[int]] = {}
        own: dict[str, list[int]] = {}
        start, middle = 0, size - each * len(old)
        for number, (name, (_, width)) in enumerate(old.items()):
            parts[name] = position[start : start + width]
            own[name] = position[middle + number * each :][:each]
            start += width
        found: list[int] = []
        for name, _, width in self.parts:
            found += parts.get(name, [0] * width)
        found.append(position[start])
        for name, _, _ in self.parts:
            kept = own.get(name) if self.mixture.keeps_integers else None
            found += kept or [0] * each
        return found + self._later(position[size:])

    def _later(self, position: list[int]) -> list[int]:
        """The integers of the nodes after the mixture; those that count inside a group begin anew."""
        found: list[int] = []
        for node in self.later:
            own = position[len(found) : len(found) + node.position_width]
            found += [0] * len(own) if _holds_elements(node) else own
        return found


def _parts_in(found: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """For each part of a state its fingerprint, and the integers of its position.

    Raises:
        StateError: If the state is damaged.
    """
    try:
        parts = {str(name): (str(own), int(width)) for name, own, width in found["parts"]}
    except (KeyError, TypeError, ValueError):
        raise StateError(
            f"state has the mixture {str(found)[:80]}, without the name, fingerprint and width of each"
            " part. The state is damaged: restore another one."
        ) from None
    return parts


def _holds_elements(node: Node) -> bool:
    in_group = node.needs_many or node.stream_step is Step.GROUPS
    return bool(node.position_width) and in_group


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
