"""Tables of runs by a known law, as files that the commands of `laws` read."""

import numpy as np

COLUMNS = ("--columns", "params=N,tokens=D,loss=val")
# Twenty runs without noise, under names that need no --columns.
TABLE = "params,tokens,loss\n" + "".join(
    f"{n},{d},{1.7 + 400 / n**0.34 + 410 / d**0.28:.4f}\n"
    for n in (1e6, 3e6, 1e7, 3e7, 1e8)
    for d in (1e8, 3e8, 1e9, 3e9)
)


def write_table(path, sizes, tokens_per_param):
    """Write a run of each size at each number of tokens a parameter, with losses by Hoffmann et al. and noise."""
    n = np.repeat(sizes, len(tokens_per_param))
    d = n * np.tile(tokens_per_param, len(sizes))
    loss = (1.8 + 480 / n**0.35 + 2085 / d**0.37) * np.exp(
        np.random.default_rng(3).normal(0, 0.003, len(n))
    )
    return write_rows(path, np.c_[n, d, loss])


def write_rows(path, rows):
    np.savetxt(path, rows, delimiter=",", header="N,D,val", comments="")
    return path
