"""The example of packed rows: killed and resumed runs are one run, and each record counts once."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_tokens_do_not_see_other_documents_or_later_tokens() -> None:
    rng = np.random.default_rng(0)
    params = example.initial()

    def losses(tokens: example.Array, ids: list[int], counted: list[int]) -> float:
        batch = {
            "inputs": tokens[None],
            "inputs_segmentation": np.array([ids]),
            "inputs_position": np.array([[0, 1, 2, 0, 1, 0]]),
            "targets": np.array([[5, 6, 0, 7, 0, 0]]),
            "targets_segmentation": np.array([counted]),
        }
        (loss,) = np.asarray(example.losses_of(params, batch))
        return float(loss)

    ids = [1, 1, 1, 2, 2, 0]
    tokens = rng.integers(0, example.VOCABULARY, 6)
    changed = np.where(np.array(ids) == 1, tokens + 1, tokens)
    assert losses(tokens, ids, [0] * 6) == 0
    second = [0, 0, 0, 2, 0, 0]
    assert losses(changed, ids, second) == pytest.approx(losses(tokens, ids, second), rel=1e-6)
    one = [1] * 5 + [0]  # without segments the first document is seen
    assert losses(changed, one, second) != pytest.approx(losses(tokens, one, second), rel=1e-6)
    later = tokens + np.array([0, 0, 1, 0, 0, 0])
    first = [1, 1, 0, 0, 0, 0]
    assert losses(later, ids, first) == pytest.approx(losses(tokens, ids, first), rel=1e-6)
    assert losses(tokens + 1, ids, first) != pytest.approx(losses(tokens, ids, first), rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_each_held_out_record_has_a_real_row(tokens: Path, count: int) -> None:
    found: list[int] = []
    for index in range(count):
        for batch in example.evaluation_batches(tokens).shard(index, count):
            assert len(batch["real"]) == example.EVALUATION_BATCH // count
            assert not batch["targets_segmentation"][~batch["real"]].any()
            found += batch["record"][batch["real"]].tolist()
    assert sorted(found) == list(range(example.HELD_OUT))


@pytest.mark.parametrize("count", [2, 4])
def test_checksums_of_shards_are_those_of_the_batch(tokens: Path, count: int) -> None:
    chain = example.training_batches(tokens)
    with iter(chain) as batches:
        whole = [example.checksums(next(batches)) for _ in range(3)]
    shards: list[list[int]] = [[], [], []]
    for index in range(count):
        with iter(chain.shard(index, count)) as batches:
            for rows in shards:
                rows += example.checksums(next(batches))
    assert shards == whole
    assert len({row for rows in whole for row in rows}) == 3 * example.BATCH


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "saved.npz"
    saved = example.Saved.load(path)
    assert (saved.step, saved.state) == (0, None)
    assert not saved.mean.any()
    saved.move(np.linspace(-1, 1, len(saved.weights), dtype=np.float32))
    saved.state = {"version": 2}
    saved.save(path)
    again = example.Saved.load(path)
    assert (again.step, again.state) == (1, {"version": 2})
    for name in ("weights", "mean", "square"):
        one, other = getattr(saved, name), getattr(again, name)
        assert other.dtype == np.float32
        np.testing.assert_array_equal(one, other)
    assert [file.name for file in tmp_path.iterdir()] == ["saved.npz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "other batches"),
        ({"loss": 2.1}, "losses differ by 5.0e-02"),
        ({"number": 0}, "other steps"),
    ],
)
def test_runs_that_differ_are_an_error(change: dict[str, Any], message: str) -> None:
    whole = [example.Step(0, 1, 11, 3.0), example.Step(1, 1, 12, 2.0)]
    example.compare(whole, whole)
    other = dataclasses.replace(whole[1], **change)
    with pytest.raises(SystemExit, match=message):
        example.compare(whole, [whole[0], other])


def test_too_few_steps_are_refused() -> None:
    done = run("--steps", "14")
    assert (done.returncode, "--steps must be at least 15" in done.stderr) == (2, True)


@pytest.mark.parametrize("missing", ["jax", "tokenizers"])
def test_a_missing_package_names_the_extra(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; import examples.train_tokens"
    command = [sys.executable, "-c", hide]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 1
    assert "pip install '.[examples]'" in done.stderr
