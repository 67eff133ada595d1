"""Time the start of `sweeplab ui` in Chromium: until the server answers, the runs are listed, the charts stand.

Run: python tests/benchmarks/pages.py LAB NAME [rounds], on a lab where the study has been run. Each round starts its
own server, and a browser with its own profile.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.pictures import DRAWN, mlflow_pages
from benchmarks.setting import print_table, setting
from chromium import chromium_page

RUNS = "document.querySelectorAll(\".ag-row a[href*='/runs/']\").length"


def measure(lab: str, name: str) -> tuple[float, float, float]:
    """Return the seconds from the command to the printed link, to the list of runs, and to the charts."""
    began = time.perf_counter()
    with mlflow_pages(lab, name) as address:
        ready = time.perf_counter() - began
        with tempfile.TemporaryDirectory() as profile, chromium_page(Path(profile)) as page:
            page.open(address)
            page.wait_for(RUNS)
            listed = time.perf_counter() - began
            page.wait_for(DRAWN.format(2))
            return ready, listed, time.perf_counter() - began


if __name__ == "__main__":
    lab, name, *rounds = sys.argv[1:]
    print(setting(), flush=True)
    rows = [measure(lab, name) for _ in range(int(rounds[0]) if rounds else 3)]
    print_table(["link", "list of runs", "charts"], [[f"{each:.1f} s" for each in row] for row in rows])
