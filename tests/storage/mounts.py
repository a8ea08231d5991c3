"""Temporary file systems for tests, if this process may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str = "size=1m") -> Iterator[None]:
    """A new tmpfs at a folder; the test is skipped where that is not permitted."""
    folder.mkdir(exist_ok=True)
    mount(folder, options)
    try:
        yield
    finally:
        unmount(folder)


def mount(folder: Path, options: str = "size=1m") -> None:
    """Mount an empty tmpfs, or skip the test."""
    run = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        pytest.skip(f"this process may not mount a file system: {run.stderr.strip()}")


def bind(source: Path, folder: Path) -> None:
    """Bind-mount a folder at another path; permitted if `mount` was."""
    subprocess.run(["mount", "--bind", str(source), str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change the options of a mount."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def unmount(folder: Path) -> None:
    """Unmount, even while files are open; does nothing without a mount."""
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
