"""Cores and memory that a process may use, in control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from windrow.core.machine import free_bytes, machine_bytes, usable_cores


def write(folder: Path, **files: str) -> None:
    """Files of a control group; two underscores stand for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def own(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "own"
    path.write_text(f"4:cpu,cpuacct:/elsewhere\n0::{name}\n")
    return path


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
    assert usable_cores(tmp_path, own(tmp_path, "/")) == usable


def test_a_quota_of_a_group_further_up_counts(tmp_path: Path) -> None:
    write(tmp_path / "pod", cpu__max="100000 100000")
    write(tmp_path / "pod" / "container", cpu__max="max 100000")
    assert usable_cores(tmp_path, own(tmp_path, "/pod/container")) == 1
    assert usable_cores(tmp_path, own(tmp_path, "/")) == usable_cores()


@pytest.mark.parametrize(("quota", "usable"), [("100000", 1), ("-1", usable_cores())])
def test_a_quota_of_version_1_counts(tmp_path: Path, quota: str, usable: int) -> None:
    write(tmp_path / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert usable_cores(tmp_path, tmp_path / "no-own") == usable


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_a_nested_group_of_version_1_counts(tmp_path: Path, mount: str) -> None:
    write(tmp_path / mount, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    pod = tmp_path / mount / "elsewhere"
    write(pod, cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    assert usable_cores(tmp_path, own(tmp_path, "/")) == 1
    (tmp_path / "own").write_text("7:memory:/elsewhere\n4:cpu,cpuacct:/elsewhere/container\n")
    assert usable_cores(tmp_path, tmp_path / "own") == 1
    (tmp_path / "own").write_text("7:memory:/elsewhere\n4:cpu,cpuacct:/\n")
    assert usable_cores(tmp_path, tmp_path / "own") == usable_cores()


def memory(tmp_path: Path, kibibytes: int) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal:       9000000 kB\nMemAvailable:   {kibibytes} kB\n")
    return path


def test_the_memory_of_the_machine_is_free_without_control_groups(tmp_path: Path) -> None:
    assert free_bytes(tmp_path, tmp_path / "no-own", memory(tmp_path, 1000)) == 1_024_000
    unknown = free_bytes(tmp_path, tmp_path / "no-own", tmp_path / "no-meminfo")
    assert unknown == machine_bytes()


def test_the_limit_of_a_group_counts_without_the_pages_of_files(tmp_path: Path) -> None:
    write(tmp_path, memory__max="max", memory__current="1")
    group = tmp_path / "pod"
    write(group, memory__max="700", memory__current="600", memory__stat="anon 5\ninactive_file 250")
    assert free_bytes(tmp_path, own(tmp_path, "/pod"), memory(tmp_path, 1000)) == 350
    write(group, memory__max="100", memory__stat="")
    assert free_bytes(tmp_path, own(tmp_path, "/pod"), memory(tmp_path, 1000)) == 0


def test_the_limit_of_version_1_counts(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes="900", memory__usage_in_bytes="100")
    assert free_bytes(tmp_path, tmp_path / "no-own", memory(tmp_path, 1000)) == 800
