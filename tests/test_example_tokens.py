"""The example of packed rows: killed and resumed runs are one run, and each record counts once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import windrow
from examples import train_tokens as example
from windrow.sources import RaggedDataSource

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).resolve().parent.parent
STEPS = 15


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example.write_tokens(tmp_path_factory.mktemp("tokens"))


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "train_tokens.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


def test_the_program() -> None:
    done = run("--steps", str(STEPS))
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(
        r"^ +(\d+)   ([0-9a-f]{8}) (\d\.\d{4})   ([0-9a-f]{8}) (\d\.\d{4})   (\d)$",
        done.stdout,
        re.MULTILINE,
    )
    # Killed in steps 5 and 10, which come again; the steps before them were saved.
    assert [(int(row[0]), int(row[5])) for row in rows] == [
        *((step, 2) for step in range(6)),
        *((step, 1) for step in range(5, 11)),
        *((step, 4) for step in range(10, STEPS)),
    ]
    assert all(row[1] == row[3] for row in rows)
    assert len({row[1] for row in rows}) == STEPS
    losses = [float(row[4]) for row in rows]
    np.testing.assert_allclose(losses, [float(row[2]) for row in rows], rtol=1e-3)
    assert losses[-1] < 0.9 * losses[0]
    fills = [float(share) for share in re.findall(r"planned +([\d.]+)%", done.stdout)]
    theirs = [float(share) for share in re.findall(r"best fit, 64.* ([\d.]+)%", done.stdout)]
    # Where speeches are short and rows long, the last row alone is not full, in any packer.
    assert fills[0] > 99.9
    assert 100 - fills[0] < (100 - theirs[0]) / 3
    assert 99.5 < fills[1] <= 100
    assert fills[1] >= theirs[1]
    assert "88 + 82 + 80 = 250 records, each once" in done.stdout


def test_tokens_are_the_plays(tokens: Path) -> None:
    speeches = example.speeches_of(example.PLAYS)
    tokenizer = Tokenizer.from_file(str(tokens.parents[1] / "tokenizer.json"))
    rows = list(windrow.MapDataset.source(RaggedDataSource(tokens)))
    assert len(rows) == len(speeches) == 7222
    assert all(row[-1] == tokenizer.token_to_id(example.END) for row in rows)
    assert tokenizer.decode_batch([row[:-1].tolist() for row in rows]) == speeches


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_each_held_out_record_has_a_real_row(tokens: Path, count: int) -> None:
    found: list[int] = []
    for index in range(count):
        for batch in example.evaluation_batches(tokens).shard(index, count):
            assert len(batch["real"]) == example.EVALUATION_BATCH // count
            assert not batch["targets_segmentation"][~batch["real"]].any()
            found += batch["record"][batch["real"]].tolist()
    assert sorted(found) == list(range(example.HELD_OUT))
