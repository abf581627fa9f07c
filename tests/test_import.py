"""`import windrow` costs little: in every worker process, and without any extra."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import windrow

# Each is an optional extra, or takes longer to import than all that windrow needs.
OPTIONAL = (
    "apache_beam",
    "aiohttp",
    "fsspec",
    "gcsfs",
    "grain",
    "jax",
    "jaxlib",
    "jinja2",
    "matplotlib",
    "orbax",
    "pandas",
    "plotly",
    "psutil",
    "pyarrow",
    "s3fs",
    "scipy",
    "sklearn",
    "tensorflow",
    "tensorflow_datasets",
    "tqdm",
    "zarr",
)
# What tensorstore brings along is free.
NEEDED = {
    "array_record",
    "google_crc32c",
    "ml_dtypes",
    "numpy",
    "tensorstore",
    "windrow",
    "zstandard",
}


def loaded_by(statement: str, directory: Path) -> list[str]:
    """Names of all modules that a fresh process has loaded after `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        # -I: neither the working directory nor PYTHONPATH may offer a module.
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
    )
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return loaded_by("import windrow", tmp_path_factory.mktemp("empty"))


def test_import_leaves_out_what_is_optional(loaded: list[str]) -> None:
    assert {module.split(".")[0] for module in loaded} & set(OPTIONAL) == set()
    # The check can fail: json is loaded by the program that looks.
    assert "json" in loaded


def test_import_brings_only_what_is_needed(loaded: list[str], tmp_path: Path) -> None:
    # Before any statement: the interpreter's own start, and what the environment adds to it.
    at_start = {name.split(".")[0] for name in loaded_by("pass", tmp_path)}
    roots = {name.split(".")[0] for name in loaded} - at_start - sys.stdlib_module_names
    assert roots - NEEDED == set()


@pytest.mark.parametrize("name", ["ZarrDataSource", "ArrayRecordDataSource"])
def test_a_source_that_is_looked_for_at_the_top_is_named(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}'; it is windrow.sources.{name}"):
        getattr(windrow, name)
    assert not hasattr(windrow, "nothing")


# At most so many modules of our own in a process that makes a dataset and iterates over it.
MOST_OWN = 90
_ITERATE = """
import sys, windrow
def own(_):
    return sum(name.partition(".")[0] == "windrow" for name in sys.modules)
dataset = windrow.MapDataset.range(4).map(own).batch(2)
"""


def own_modules(names: list[str]) -> list[str]:
    return [name for name in names if name.partition(".")[0] == "windrow"]


def test_import_loads_few_modules_of_our_own(loaded: list[str], tmp_path: Path) -> None:
    assert len(own_modules(loaded)) <= MOST_OWN
    iterated = loaded_by(_ITERATE + "list(dataset.to_iter_dataset())", tmp_path)
    assert "windrow.engine.execute" in iterated
    assert len(own_modules(iterated)) <= MOST_OWN


def test_a_worker_loads_few_modules_of_our_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    stream = "dataset.to_iter_dataset().mp_prefetch(windrow.MultiprocessingOptions(num_workers=1))"
    program.write_text(
        f"{_ITERATE}\nif __name__ == '__main__':\n    print(max(b.max() for b in {stream}))\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-I", str(program)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert 0 < int(done.stdout) <= MOST_OWN


def test_the_modules_of_grains_names_load_what_is_used(tmp_path: Path) -> None:
    names = "windrow.experimental, windrow.python"
    assert len(own_modules(loaded_by(f"import {names}", tmp_path))) <= 10
    loaded = loaded_by(f"import {names}\nwindrow.python.DataLoader", tmp_path)
    assert "windrow.grain_api.data_loader" in loaded
    assert not {"fsspec", "jax", "orbax", "pyarrow"} & set(loaded)


def test_a_stream_knows_the_class_of_its_parents_where_it_arrives(tmp_path: Path) -> None:
    (tmp_path / "stream").write_bytes(pickle.dumps(windrow.MapDataset.range(4).to_iter_dataset()))
    loads = "import pickle, pathlib\nstream = pickle.loads(pathlib.Path('stream').read_bytes())\n"
    assert "windrow.map_dataset" in loaded_by(loads + "list(*stream.parents)", tmp_path)
