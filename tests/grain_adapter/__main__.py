"""Runs files of Grain's wheel: `python -m tests.grain_adapter [--slow] [NAME ...] [OPTION ...]`."""

import sys

import pytest

from tests.grain_adapter import listed, wheel

_SLOW = ("prefetch", "process_prefetch")


def main(arguments: list[str]) -> int:
    """Run the named files, or all that are not slow; with `--slow` those too."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    options = [each for each in arguments if each.startswith("-") and each != "--slow"]
    every = [name for name in listed.read().cases if name not in _SLOW or "--slow" in arguments]
    files = [str(wheel.file_of(f"{name}_test")) for name in names or every]
    settings = ["-c", "/dev/null", "--rootdir=.", "-p", "no:cacheprovider", "-W", "ignore"]
    return pytest.main(["-p", "tests.grain_adapter.plugin", "-q", *settings, *options, *files])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
