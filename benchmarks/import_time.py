"""How long `import windrow` takes, beside what it cannot do without: NumPy and TensorStore.

Every worker process pays it at its start. The statements are timed in turn, each in a fresh
process, so that a busy moment of the machine meets all of them; the minimum over the rounds is
what the import costs, the rest is the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

OURS = "import windrow"
PEER = "import numpy, tensorstore"

_PROGRAM = """
import time
start_s = time.perf_counter()
{statement}
print(time.perf_counter() - start_s)
"""


def seconds(statement: str) -> float:
    """Seconds that `statement` takes in a fresh process, without the interpreter's own start."""
    # Bytecode is what people import; with this variable each process would compile the source.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(done.stdout)


def run(rounds: int = 10) -> dict[str, object]:
    """Minimum over `rounds` fresh processes of each statement, after one that fills the caches."""
    ours_s, peer_s = [], []
    for _ in range(rounds + 1):
        ours_s.append(seconds(OURS))
        peer_s.append(seconds(PEER))
    ours, peer = min(ours_s[1:]), min(peer_s[1:])
    return {
        "case": "import",
        "ours": OURS,
        "peer": PEER,
        "ours_s": round(ours, 4),
        "peer_s": round(peer, 4),
        "ratio": round(ours / peer, 2),
        "rounds": rounds,
    }


def main() -> int:
    """Print the result as one line of JSON."""
    print(json.dumps(run()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
