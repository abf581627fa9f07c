"""Looks for failures with examples that no run has tried before: `make hunt MINUTES=30`.

Runs all tests that use hypothesis, round after round, each round with another seed, until the
minutes are over. The first round's seed is random, each later one is larger by 1. A round draws the
same examples whenever it runs with the same seed and the same tests, so `make hunt SEED=...` repeats
exactly the round that failed. A failure ends the hunt; it is fixed, and its example is pinned with
`@example` in the test.

Exit code: 0 if all rounds were clean, 1 if a test failed, 2 if pytest could not run the tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

# Hypothesis itself marks the tests that use it. TensorFlow Datasets and Chromium are not everywhere.
MARKS: Final = "hypothesis and not report and not tfds"

_PASSED = re.compile(r"^(?:.*, )?(\d+) passed", re.MULTILINE)
_EXAMPLES = re.compile(r"(\d+) passing(?: examples)?, (\d+) failing")  # older, newer hypothesis


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a round came to: how pytest exited, its tests, their examples, and all it printed."""

    exit_code: int
    tests: int
    examples: int
    output: str


def run_round(seed: int, tests: Sequence[str], workers: int) -> Round:
    """Run the tests once with the examples of a seed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider"),
            *("-m", MARKS, "--hypothesis-profile=hunt", f"--hypothesis-seed={seed}"),
            # A hunt draws more examples than a fixed test: its longest tests take minutes.
            *("-o", "faulthandler_timeout=900"),
            *("--hypothesis-show-statistics", *tests),
        ],
        cwd=ROOT,
        # Strategies that draw from sets depend on the order of hashes too.
        env={**os.environ, "PYTHONHASHSEED": str(seed % 2**32)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    passed = _PASSED.findall(done.stdout)
    examples = sum(int(good) + int(bad) for good, bad in _EXAMPLES.findall(done.stdout))
    return Round(done.returncode, int(passed[-1]) if passed else 0, examples, done.stdout)


def without_statistics(output: str) -> str:
    """The output of pytest without the statistics of hypothesis, which fill many pages."""
    return re.sub(
        r"^=+ Hypothesis Statistics =+$.*?(?=^=+ )", "", output, flags=re.MULTILINE | re.DOTALL
    )


def hunt(
    first_seed: int, *, seconds: float, most_rounds: int | None, tests: Sequence[str], workers: int
) -> int:
    """Run rounds until the time is over or one fails, and return the exit code.

    Args:
        first_seed: Seed of the first round.
        seconds: No round starts later than this; the first one always runs.
        most_rounds: Rounds at most; None for as many as the time allows.
        tests: Files, folders or names of tests, as pytest takes them.
        workers: Processes that run tests.
    """
    begun, rounds, all_tests, all_examples = time.monotonic(), 0, 0, 0
    print(f"hunt: first seed {first_seed}; examples are drawn for {seconds / 60:g} min", flush=True)
    while not rounds or (
        time.monotonic() - begun < seconds and (most_rounds is None or rounds < most_rounds)
    ):
        seed, round_begun = first_seed + rounds, time.monotonic()
        print(f"round {rounds + 1}: seed {seed} ...", flush=True)
        found = run_round(seed, tests, workers)
        if found.exit_code:
            print(without_statistics(found.output), flush=True)
            print(f"round {rounds + 1} failed. To repeat it: make hunt SEED={seed}", flush=True)
            return 1 if found.exit_code == 1 else 2
        rounds, all_tests = rounds + 1, all_tests + found.tests
        all_examples += found.examples
        took_s = time.monotonic() - round_begun
        print(f"  {found.tests} tests, {found.examples:,} examples, {took_s:.0f} s", flush=True)
    print(f"{rounds} rounds, {all_tests:,} tests, {all_examples:,} examples: clean", flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.hunt", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, help="no round starts later (default: 30)")
    parser.add_argument(
        "--seed", type=int, help="seed of the first round; without --minutes it is the only round"
    )
    parser.add_argument("--rounds", type=int, help="rounds at most")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("tests", nargs="*", default=["tests"], help="what to run (default: tests)")
    given = parser.parse_args(arguments)
    is_repeated = given.seed is not None and given.minutes is None and given.rounds is None
    return hunt(
        secrets.randbelow(2**32) if given.seed is None else given.seed,
        seconds=60 * (30 if given.minutes is None else given.minutes),
        most_rounds=1 if is_repeated else given.rounds,
        tests=given.tests,
        workers=given.workers,
    )


if __name__ == "__main__":
    sys.exit(main())
