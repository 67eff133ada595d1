"""A small disk of its own that can be filled up: a tmpfs, which only root can mount."""

import subprocess
from contextlib import contextmanager


class Disk:
    """A disk of its own: `fill` leaves no byte of it, `free` gives all of that back."""

    def __init__(self, path):
        self.path, self._ballast = path, path / "ballast"

    def fill(self):
        with self._ballast.open("ab", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def free(self):
        self._ballast.unlink(missing_ok=True)


@contextmanager
def mounted(place):
    """Mount a disk of 64 MB; None where that is not allowed."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
