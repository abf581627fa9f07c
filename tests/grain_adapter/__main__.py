"""Runs files of Grain's wheel: `python -m tests.grain_adapter [NAME ...]`."""
import sys
import pytest
from tests.grain_adapter import wheel
names_ = [a for a in sys.argv[1:] if not a.startswith("-")]
opts = [a for a in sys.argv[1:] if a.startswith("-")]
sys.exit(pytest.main(["-p", "tests.grain_adapter.plugin", "-c", "/dev/null", "--rootdir", ".", "-q", "-p", "no:cacheprovider", *opts, *[str(wheel.file_of(n + "_test")) for n in names_]]))
