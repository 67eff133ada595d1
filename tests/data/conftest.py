"""A text file, and a cache of its own."""

import os
from pathlib import Path

import pytest

TEXT = "".join(f"{number} naïve cafés, " for number in range(2000))
AN_HOUR = 3600 * 10**9


def write(path: Path, text: str, age: int = AN_HOUR) -> None:
    path.write_bytes(text.encode())
    time = path.stat().st_mtime_ns - age
    os.utime(path, ns=(time, time))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a text file that was last written an hour ago."""
    path = tmp_path / "text.txt"
    write(path, TEXT)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
