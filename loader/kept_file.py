"""Keeps what one pass over a dataset found in a file, for later runs.

Invariant: a file serves the data and the functions that it was made of, and no others. It is written
in one step, and nothing in it is unpickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, NotFoundError, SourceError

Arrays = Mapping[str, npt.NDArray[Any]]

_ABOUT: Final = "about"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptFile:
    """A file with arrays, and what they were made of.

    Args:
        what: The function that makes them, for messages.
        target: The file.
        about: What it must say of the data and the functions, as JSON; None for any.
    """

    what: str
    target: Path
    about: dict[str, Any] | None

    @classmethod
    def at(cls, path: str | os.PathLike[str], about: dict[str, Any] | None, what: str) -> KeptFile:
        """The file at a path, which need not exist.

        Raises:
            ArgumentError: If `path` is not a path.
            NotFoundError: If its folder does not exist.
        """
        try:
            target = Path(path)
        except TypeError as error:
            raise ArgumentError(
                f"{what}: path must name a local file, got {path!r:.200}"
            ) from error
        if not target.absolute().parent.is_dir():
            raise NotFoundError(
                f"{what}: there is no local folder {target.absolute().parent}; make it first"
            )
        return cls(what, target, about)

    def read(self) -> Arrays | None:
        """The arrays in the file; None if it is not there.

        Raises:
            SourceError: If it was made of other data, or is damaged.
        """
        if not self.target.exists():
            return None
        try:
            with np.load(self.target, allow_pickle=False) as stored:
                then = json.loads(bytes(stored[_ABOUT]))
                found = {name: stored[name] for name in stored.files if name != _ABOUT}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise self.damaged(f"damaged, or not a file of {self.what} ({error})") from error
        if self.about is not None and then != self.about:
            raise SourceError(
                f"{self.what}: {self.target} was made of other data, or with other functions\n"
                f"  there:        {json.dumps(then)}\n"
                f"  this dataset: {json.dumps(self.about)}\n"
                "Remove it to make it again, or give another path."
            )
        return found

    def damaged(self, how: str = "damaged") -> SourceError:
        """The error for a file whose arrays are not what they must be."""
        return SourceError(
            f"{self.what}: {self.target} is {how}; remove it to make it again, or give another path"
        )

    def write(self, arrays: Arrays) -> None:
        """Write the file.

        Raises:
            SourceError: If it cannot be written.
        """
        temporary = self.target.with_name(f".windrow-{uuid.uuid4().hex}.tmp")
        about = np.frombuffer(json.dumps(self.about).encode(), np.uint8)
        try:
            with open(temporary, "wb") as file:
                np.savez(file, **{**arrays, _ABOUT: about})  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.target)
        except OSError as error:
            raise SourceError(
                f"{self.what}: {self.target} cannot be written: {error.strerror or error}"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
