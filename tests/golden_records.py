"""What the golden files hold of a chain, and how it is observed: only through the public package."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden_chains import Dataset, Recipe, build
from windrow import MapDataset, WindrowError
from windrow.transforms.nodes import described

FEW = 48  # elements of a stream that are looked at
AFTER = 12  # elements after a restored state
_STEPS = (0, 1, 2, 7, 19)
_DIGITS = 8  # of a hash, per element


def digest(value: Any) -> str:
    """A short hash of a value: types, dtypes, shapes, names and bits."""
    hashed = hashlib.sha256()
    for part in _parts(value):
        hashed.update(part)
        hashed.update(b"\0")
    return hashed.hexdigest()[:_DIGITS]


def _parts(value: Any) -> Iterator[bytes]:
    match value:
        case None | bool() | int() | str():
            yield f"{type(value).__name__} {value}".encode()
        case float() if not isinstance(value, np.generic):
            yield f"float {value.hex()}".encode()
        case bytes() if not isinstance(value, np.generic):
            yield b"bytes %d " % len(value) + value
        case dict():
            yield f"dict {len(value)}".encode()
            for key, one in value.items():
                yield repr(key).encode()
                yield from _parts(one)
        case list() | tuple():
            fields = getattr(value, "_fields", ())
            yield f"{type(value).__name__} {len(value)} {fields}".encode()
            for one in value:
                yield from _parts(one)
        case np.ndarray() | np.generic():
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            yield f"{kind} {value.dtype.str} {value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        case _:
            raise TypeError(f"no golden form of {type(value).__qualname__}")


def error_of(error: BaseException, folder: Path | str = "\0") -> list[str]:
    """The class and the message of an error; the folder of the stores is not in it."""
    kind = type(error)
    # Only the public name of a class is promised.
    module = "windrow.errors" if isinstance(error, WindrowError) else kind.__module__
    return [f"{module}.{kind.__qualname__}", masked(str(error), folder)]


def masked(text: str, folder: Path | str) -> str:
    """A text without what differs from run to run: places, addresses and times."""
    text = text.replace(str(folder), "STORES")
    text = re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", text)
    return re.sub(r"[0-9.,]+ (s|ms|seconds)\b", r"TIME \1", text)


def attempted(call: Callable[[], Any], folder: Path | str = "\0") -> Any:
    """What a call gives, or `{"error": [class, message]}`."""
    try:
        return call()
    except Exception as error:
        return {"error": error_of(error, folder)}


def spec_text(spec: Any) -> Any:
    """A spec as JSON."""
    if isinstance(spec, Mapping):
        return {str(key): spec_text(one) for key, one in spec.items()}
    if isinstance(spec, list | tuple):
        return [type(spec).__name__, *map(spec_text, spec)]
    return spec.__qualname__ if isinstance(spec, type) else str(spec)


def observed(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """All that is held of a chain, but the recipe itself."""
    try:
        dataset = build(recipe, folder)
    except Exception as error:
        return {"build": error_of(error, folder)}
    found: dict[str, Any] = {
        "repr": f"{type(dataset).__name__}({masked(described(dataset._node), folder)})",
        "spec": attempted(lambda: spec_text(dataset.element_spec), folder),
    }
    if isinstance(dataset, MapDataset):
        found["length"] = len(dataset)
        found["random"] = random_access(dataset, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.update(iterated(dataset, folder))
    return found


def random_access(dataset: MapDataset[Any], folder: Path) -> dict[str, Any]:
    """Single elements of several epochs, and a read of several at once."""
    n = len(dataset)
    near = [0, 1, 5, n - 1, -1, n // 2]
    far = [] if n >= sys.maxsize // 4 else [n, n + 2, 3 * n + 1, -n - 1, -2 * n]
    at = sorted({*near, *far, 1000})
    single = {
        str(index): attempted(lambda index=index: digest(dataset[index]), folder)  # type: ignore[misc]
        for index in at
    }
    several = attempted(lambda: digest(dataset.read([0, n // 2, 0, n - 1, 3])), folder)
    listed = attempted(lambda: digest(dataset.__getitems__([2, 1, n - 1])), folder)
    return {"single": single, "read": several, "getitems": listed}


def iterated(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Digests of the first elements, how the stream ends, and states with their positions."""
    elements: list[str] = []
    end: Any = "more"
    with iter(dataset) as iterator:
        state = iterator.get_state()
        positions = {"0": place_of(state)}
        for step in itertools.count(1):
            try:
                element = next(iterator)
            except StopIteration:
                end = "end"
            except Exception as error:
                end = error_of(error, folder)
            else:
                elements.append(digest(element))
            if end != "more" or step in _STEPS or step == FEW:
                positions[str(len(elements))] = place_of(iterator.get_state())
            if end != "more" or step == FEW:
                break
    for key in place_of(state):
        del state[key]
    state["chain"] = masked(state["chain"], folder)
    return {"state": state, "positions": positions, "elements": "".join(elements), "end": end}


def place_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state that differs from step to step."""
    return {key: state[key] for key in ("rows", "lanes", "after") if key in state}


def restored(recipe: Recipe, held: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """What differs after held states are restored: the elements after each, and the end.

    Two states of a chain are restored, other ones in other chains.
    """
    elements = held["elements"]
    steps = [step for step in held["positions"] if int(step)]
    turn = int(held["state"]["fingerprint"], 16) % max(1, len(steps))
    dataset = build(recipe, folder)
    for step in (steps[turn:] + steps[:turn])[:2]:
        at, position = int(step), held["positions"][step]
        with iter(dataset) as iterator:
            iterator.set_state({**held["state"], **position})
            if place_of(iterator.get_state()) != position:
                yield f"restored at {step}: the place is {place_of(iterator.get_state())}"
            for number in range(at, at + AFTER):
                expected = elements[number * _DIGITS : (number + 1) * _DIGITS]
                try:
                    got = digest(next(iterator))
                except StopIteration:
                    got = "end"
                except Exception as error:
                    got = str(error_of(error, folder))
                if not expected:
                    if held["end"] != "more" and got != str(held["end"]):
                        yield f"restored at {step}: element {number} is {got}, not {held['end']}"
                    break
                if got != expected:
                    yield f"restored at {step}: element {number} is {got}, not {expected}"
                    break


def differences(expected: Any, got: Any, where: str = "") -> Iterator[str]:
    """Where two values of JSON differ, one line for each leaf."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted({*expected, *got}):
            path = f"{where}.{key}" if where else str(key)
            if key not in expected or key not in got:
                held = "golden files" if key in expected else "this code"
                yield f"{path}: only in {held}: {str(expected.get(key, got.get(key)))[:200]}"
            else:
                yield from differences(expected[key], got[key], path)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{where}[{number}]")
    elif expected != got and where.endswith("elements") and {type(expected), type(got)} == {str}:
        pairs = itertools.zip_longest(expected, got)
        first = next(at for at, (one, other) in enumerate(pairs) if one != other) // _DIGITS
        counts = len(expected) // _DIGITS, len(got) // _DIGITS
        yield f"{where}: from element {first} on; golden {counts[0]} elements, now {counts[1]}"
    elif expected != got:
        yield f"{where}:\n  golden: {expected!r}\n  now:    {got!r}"
