"""`python -m tests.chaos --minutes 30 --seed 7 --faults kill-worker stop-server`."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from tests.chaos.faults import FAULTS, JUMP_CLOCK
from tests.chaos.run import chaos

KINDS = (*FAULTS, JUMP_CLOCK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument(
        "--minutes", type=float, default=30, help="no fault comes later (default: 30)"
    )
    parser.add_argument("--seed", type=int, help="of what is drawn (default: another each time)")
    parser.add_argument(
        "--faults", nargs="+", choices=KINDS, default=KINDS, help="the kinds (default: all)"
    )
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    return chaos(seed, minutes=given.minutes, kinds=given.faults)


if __name__ == "__main__":
    sys.exit(main())
