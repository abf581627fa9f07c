"""Writes the golden files: `python -m tests.golden_maker --write`.

Without `--write` it says what differs, as the tests do. Names of files after it
(`--write conversions`) leave the others as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.golden_files import CHAINS, GOLDEN, PARTS, computed, part, write
from tests.golden_records import differences
from tests.golden_stores import unpack


def main() -> int:
    """Write the golden files, or say what differs."""
    parser = argparse.ArgumentParser(description="Compare the golden files, or write them.")
    parser.add_argument("files", nargs="*", help=f"of {CHAINS}, {', '.join(PARTS)}; default all")
    parser.add_argument("--write", action="store_true", help="write the files")
    given = parser.parse_args()
    names = given.files or [CHAINS, *PARTS]
    if unknown := set(names) - {CHAINS, *PARTS}:
        parser.error(f"there is no file {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="windrow-golden-") as made:
        folder = unpack(Path(made) / "stores")
        found = {name: computed(name, folder) for name in names}
    if given.write:
        write(found)
        print(f"wrote {', '.join(names)} in {GOLDEN}")
        return 0
    now = json.loads(json.dumps(found))
    lines = [line for name in names for line in differences(part(name), now[name], name)]
    print("\n".join(lines) or "nothing differs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
