"""What importing takes of time and memory, beside what it cannot do without: NumPy and TensorStore.

`import windrow` alone loads nothing: names are imported when they are used. Every worker process pays
for them at its start. The statements are timed in turn, each in a fresh process, so that a busy moment
of the machine meets all of them; the minimum over the rounds is what the import costs, the rest is the
machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

OURS = "from windrow import MapDataset"
PEER = "import numpy, tensorstore"

_PROGRAM = """
import time
import psutil
before = psutil.Process().memory_info().rss
start_s = time.perf_counter()
{statement}
took_s = time.perf_counter() - start_s
print(took_s, psutil.Process().memory_info().rss - before)
"""


def cost(statement: str) -> tuple[float, float]:
    """What `statement` takes in a fresh process, without the interpreter's start: seconds, and MiB."""
    # Bytecode is what people import; with this variable each process would compile the source.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    seconds, size = done.stdout.split()
    return float(seconds), int(size) / 2**20


def run(rounds: int = 10) -> dict[str, object]:
    """Minimum over `rounds` fresh processes of each statement, after one that fills the caches."""
    found = [(*cost(OURS), *cost(PEER)) for _ in range(rounds + 1)][1:]
    ours, ours_mib, peer, peer_mib = map(min, zip(*found, strict=True))
    return {
        "case": "import",
        "ours": OURS,
        "peer": PEER,
        "ours_s": round(ours, 4),
        "peer_s": round(peer, 4),
        "ratio": round(ours / peer, 2),
        "ours_mib": round(ours_mib, 1),
        "peer_mib": round(peer_mib, 1),
        "rounds": rounds,
    }


def main() -> int:
    """Print the result as one line of JSON."""
    print(json.dumps(run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
