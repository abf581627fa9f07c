"""Small stores of every layout that the golden chains read, kept as one archive of files.

The archive is kept, not made anew in each run: so no version of a library that writes changes what
the golden files compare.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parent / "golden" / "stores.tar.gz"


def unpack(folder: Path) -> Path:
    """The stores, in a folder that is made for them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def pack(folder: Path) -> None:
    """Write the archive: files in the order of their names, without times or owners."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = path.stat().st_size
                info.mode = 0o644
                archive.addfile(info, io.BytesIO(path.read_bytes()))
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.write_bytes(gzip.compress(held.getvalue(), 9, mtime=0))
