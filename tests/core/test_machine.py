"""Cores that a process may use, in control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from windrow.core.machine import usable_cores


def write(folder: Path, **files: str) -> None:
    """Files of a control group; two underscores stand for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def own(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "own"
    path.write_text(f"4:cpu,cpuacct:/elsewhere\n0::{name}\n")
    return path


def usable_in(groups: Path, own: Path) -> int:
    return usable_cores.__wrapped__(groups, own)  # not the cached answer


@pytest.mark.parametrize(
    ("quota", "usable"),
    [
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", usable_cores()),
        ("9900000 100000", usable_cores()),
    ],
)
def test_a_quota_of_version_2_counts(tmp_path: Path, quota: str, usable: int) -> None:
    write(tmp_path, cpu__max=quota)
    assert usable_in(tmp_path, own(tmp_path, "/")) == usable


def test_a_quota_of_a_group_further_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "pod", cpu__max="100000 100000")
    write(tmp_path / "pod" / "container", cpu__max="max 100000")
    assert usable_in(tmp_path, own(tmp_path, "/pod/container")) == 1
    assert usable_in(tmp_path, own(tmp_path, "/")) == usable_cores()


@pytest.mark.parametrize(("quota", "usable"), [("100000", 1), ("-1", usable_cores())])
def test_a_quota_of_version_1_counts(tmp_path: Path, quota: str, usable: int) -> None:
    write(tmp_path / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert usable_in(tmp_path, tmp_path / "no-own") == usable


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_a_nested_group_of_version_1_counts(tmp_path: Path, mount: str) -> None:
    write(tmp_path / mount, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    pod = tmp_path / mount / "elsewhere"
    write(pod, cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    assert usable_in(tmp_path, own(tmp_path, "/")) == 1
    (tmp_path / "own").write_text("7:memory:/elsewhere\n4:cpu,cpuacct:/elsewhere/container\n")
    assert usable_in(tmp_path, tmp_path / "own") == 1
    (tmp_path / "own").write_text("7:memory:/elsewhere\n4:cpu,cpuacct:/\n")
    assert usable_in(tmp_path, tmp_path / "own") == usable_cores()
