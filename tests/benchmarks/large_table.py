"""Measure time and peak memory of `sweeplab laws fit` on a planted table of many rows.

Run: python tests/benchmarks/large_table.py [ROWS …]   (100000 where none is given; 1000000 takes minutes)
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_laws import TRUTHS, losses


def measured(n_rows: int, folder: Path) -> list[str]:
    random = np.random.default_rng(0)
    n = np.exp(random.uniform(np.log(1e6), np.log(1e10), n_rows))
    d = n * np.exp(random.uniform(np.log(2), np.log(200), n_rows))
    loss = losses(TRUTHS["steep"], n, d) * np.exp(0.01 * random.standard_normal(n_rows))
    path = folder / f"{n_rows}.csv"
    np.savetxt(path, np.c_[n, d, loss], delimiter=",", header="N,D,loss", comments="")
    start = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "from sweeplab.cli import main; main()",
        "laws",
        "fit",
        str(path),
        "--json",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    return [f"{n_rows:,}", f"{seconds:.0f} s", f"{peak:.2f} GB"]


def main() -> None:
    asked = sorted(int(float(each)) for each in sys.argv[1:]) or [100_000]
    print(setting())
    with tempfile.TemporaryDirectory() as folder:
        print_table(["rows", "laws fit", "peak memory"], [measured(each, Path(folder)) for each in asked])


if __name__ == "__main__":
    main()
