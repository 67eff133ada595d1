"""A lab on a disk without a byte left: it can be read, and what would write says so, with what may be deleted."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

READING = (
    "list",
    "show tiny",
    "best tiny",
    "watch tiny --log",
    "doctor tiny",
    "diff tiny tiny",
    "watch tiny",
    "doctor tiny --repair",
)
WRITING = (
    "extend tiny --trials-per-cell 4 --no-run",
    "enqueue tiny learning_rate=1e-3",
    "run ../tiny.yaml --name new",
)


@pytest.fixture
def disk(finished, tmp_path: Path) -> Iterator[Path]:
    """Yield a small disk of its own, which has room for the lab of the finished study and little more."""
    place = tmp_path / "disk"
    place.mkdir()
    # Other tests of this process may have left pages of several megabytes in the lab.
    size = 24 * 2**20 + sum(file.stat().st_size for file in finished.lab.rglob("*") if file.is_file())
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_what_is_whole_is_read_and_nobody_is_told_to_move_it(cli, finished, disk: Path, folder: Path) -> None:
    lab, filler = disk / "lab", disk / "filler"
    shutil.copytree(finished.lab, lab)
    shutil.copy(finished.file, folder / "tiny.yaml")
    (lab / "trash" / "old").mkdir(parents=True)
    (lab / "trash" / "old" / "big").write_bytes(bytes(2**20))
    before = {command: cli(*command.split(), "--lab", str(lab)) for command in READING}
    with filler.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(bytes(4096))
    for command in READING:
        said = cli(*command.split(), "--lab", str(lab))
        if command == "doctor tiny":
            assert "move" not in said.out and "may be deleted" in said.out, said
        elif command == "list":  # with the age of the last trial
            assert said.code == 0 and said.out.splitlines()[1].split()[:3] == ["tiny", "finished", "4/4"]
        else:
            assert (said.code, said.out) == (before[command].code, before[command].out), command
    for command in WRITING:
        said = cli(*command.replace("../", "").split(), "--lab", str(lab))
        assert said.code in (1, 2) and said.err.count("\n") == 1, said
        assert f"may be deleted: {lab / 'trash'} (1.0 MB)" in said.err and "move" not in said.err, said
    filler.unlink()
    assert cli("extend", "tiny", "--trials-per-cell", "4", "--no-run", "--lab", str(lab)).code == 0
    assert cli("rm", "tiny", "--yes", "--lab", str(lab)).code == 0
