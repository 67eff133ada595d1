"""Measure coverage, verdicts, optima and times of scaling-law fits, on tables with planted laws.

Run: python tests/benchmarks/laws.py [coverage noises forecasts tuned halves near laws optimum refits time]
         [--tables 200]
         [--designs 12 30] [--processes 2] [--table ../shared/data/chinchilla.csv --columns params=N,tokens=D,loss=loss]
"""

import argparse
import math
import os
import sys
import time
import zlib
from collections.abc import Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import numpy as np
from benchmarks.misfit import bound, size_of
from benchmarks.setting import print_table, setting
from laws.planted_laws import (
    BAD,
    EQUAL,
    FALLS,
    GOOD,
    HEAVY,
    HELD_OUT,
    NEAR,
    TRUTHS,
    of_law,
    plant,
    plant_law,
    vector,
)
from laws.planted_misfit import WRONG, wrong_losses, wrong_table
from laws.planted_mistuned import FEW, HIGH, RIGHT, mistuned_table
from laws.random_tables import random_table, scipys_gain

from sweeplab.laws import fit as fit_law
from sweeplab.laws.assessment import IDENTIFIED, assess, gate, judge
from sweeplab.laws.columns import parse_columns
from sweeplab.laws.fitting import LEAST_SQUARES, LITERATURE, Penalty, fit, solve
from sweeplab.laws.forecasts import predict
from sweeplab.laws.forms import LAWS, log_optimum, loss_at, optimum_of, parameters_of
from sweeplab.laws.intervals import (
    allowed_rises,
    bootstrap,
    inverse_curvature,
    noise_of,
    profiles,
    shared_of,
)
from sweeplab.laws.misfit import FLAGGED
from sweeplab.laws.points import read_points

CHINCHILLA = LAWS["chinchilla"]
NOISES = (0.003, 0.01, 0.02)
WATCHED = ("E", "alpha", "beta", "gamma", "N_opt exponent", "tokens per parameter", "loss at budget")
NUMBERS = tuple(name for name in WATCHED if name != "gamma")  # of chinchilla
FIRM = 1e4  # of the spring that holds a law to a value, against the profile's own curvature
WRONG_BY = 0.02  # how far off the forecasts of wrong forms are
BEYOND = 10  # the budget of the loss, over the largest of the table
TIMES = (3, BEYOND)  # of forecasts
OBJECTIVES = {"auto": None, "1e-3": LITERATURE, "least squares": LEAST_SQUARES}
DESIGNS = GOOD | BAD | NEAR


def one_table(case) -> dict[str, tuple[bool, bool]]:
    """Return for every watched quantity whether its interval holds the truth, and whether it is identified."""
    name, design, truth, noise, shared, seed = case
    law, where = LAWS[name], DESIGNS[design]
    random = np.random.default_rng([seed, zlib.crc32(repr(case[:5]).encode())])
    points = (
        plant(truth, where, noise, random, shared)
        if law is CHINCHILLA
        else plant_law(law, truth, where, noise, random)
    )
    found = fit(points, law)
    errors = shared_of(points, found) if "params" in law.columns else None
    planted = (TRUTHS | HELD_OUT)[truth] if law is CHINCHILLA else of_law(law, truth)
    theta = vector(law, planted, found.center)
    budget = BEYOND * float(points.columns["flops"].max())
    quantities = parameters_of(law, found.center) + optimum_of(law, found.center, budget, 6.0)
    if not {"params", "tokens"} <= set(law.columns):
        beyond = {column: BEYOND * float(points.columns[column].max()) for column in law.columns}
        quantities.append(loss_at(law, found.center, beyond))
    told = {}
    for quantity, interval in zip(
        quantities, profiles(found, quantities, errors, noise_of(found)), strict=True
    ):
        label = "loss at budget" if quantity.name == "loss at target" else quantity.name
        if label in WATCHED:
            true = float(quantity.measure(theta[None])[0][0])
            verdict = judge(quantity, interval, found, gate(quantity, points, found)).verdict
            told[label] = (interval.low <= true <= interval.high, verdict == IDENTIFIED)
    return told


def one_held(case) -> list[bool]:
    """Return for every number whether its interval holds the truth: whether the law, held to it, fits well enough.

    That is what the ends of a profile stand for, at a tenth of their cost.
    """
    design, truth, noise, shared, seed, kind = case
    random = np.random.default_rng(
        [seed, zlib.crc32(repr(("chinchilla", design, truth, noise, shared)).encode())]
    )
    points = plant(truth, DESIGNS[design], noise, random, shared, kind)
    found = fit(points, CHINCHILLA)
    theta = vector(CHINCHILLA, TRUTHS[truth], found.center)
    budget = BEYOND * float(points.columns["flops"].max())
    quantities = parameters_of(CHINCHILLA, found.center)
    quantities += optimum_of(CHINCHILLA, found.center, budget, 6.0)
    measures = {each.name: each.measure for each in quantities if each.name in WATCHED}
    at, slopes = zip(*(measures[name](found.theta[None]) for name in NUMBERS), strict=True)
    slopes = np.concatenate(slopes)
    leans = slopes @ inverse_curvature(found)
    spread = (leans * slopes).sum(1)
    true = np.concatenate([measures[name](theta[None])[0] for name in NUMBERS])
    near = found.theta + ((true - np.concatenate(at)) / spread)[:, None] * leans
    penalty = Penalty([measures[name] for name in NUMBERS], np.arange(len(true)), true, FIRM / spread)
    rises = [
        solve(CHINCHILLA, begin, found.rows, penalty, 1e-8).objective - found.objective
        for begin in (near, np.tile(theta, (len(true), 1)))
    ]
    allowed = allowed_rises(found, slopes, shared_of(points, found), noise_of(found))[0]
    return list(np.min(rises, axis=0) <= allowed)


def print_shares(pool, cases, n_tables: int) -> None:
    """Print a row a case (law, design, truths, noise, shared): covered / identified, in %."""
    rows, watched = [], [name for name in WATCHED if name != "gamma" or cases[0][0] != "chinchilla"]
    for law, design, truths, noise, shared in cases:
        each = [(law, design, truths[k % len(truths)], noise, shared, k) for k in range(n_tables)]
        told = pool.map(one_table, each, chunksize=5)
        shares = {name: 100 * np.mean([one[name] for one in told], axis=0) for name in told[0]}
        name = design + (f", errors {shared:.0%} shared by size" if shared else "")
        cells = [
            f"{shares[each][0]:.0f} / {shares[each][1]:.0f}" if each in shares else "" for each in watched
        ]
        rows.append([*([law] if law != "chinchilla" else []), name, f"{noise:.1%}", *cells])
    print_table([*(["law"] if cases[0][0] != "chinchilla" else []), "design", "noise", *watched], rows)


def coverage(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, both truths in turn: covered by the 90% interval / identified, in %")
    print(f"the loss is that of the best use of {BEYOND} times the largest budget of the table\n")
    cases = [("chinchilla", name, (*TRUTHS,), noise, 0.0) for name in (*GOOD, *BAD) for noise in NOISES]
    for name in (*GOOD,)[:3]:
        cases += [("chinchilla", name, (*TRUTHS,), noise, 0.36) for noise in NOISES]
    print_shares(pool, cases, n_tables)


def noises(pool, n_tables: int, designs: Sequence[str] = ("",)) -> None:
    print(f"\n{n_tables} tables a row, both truths in turn, 1% noise: covered by the 90% interval, in %\n")
    rows = []
    for design in [each for each in [*GOOD][1:] if each.startswith(tuple(designs))]:
        for words, kind, shared in (
            ("equal", EQUAL, 0.0),
            ("falls with D", FALLS, 0.0),
            ("t3", HEAVY, 0.0),
            ("36% shared by size", EQUAL, 0.36),
        ):
            if shared and design.startswith("245"):
                continue  # no two of its rows have one size
            cases = [(design, [*TRUTHS][k % 2], 0.01, shared, k, kind) for k in range(n_tables)]
            held = 100 * np.mean(pool.map(one_held, cases, chunksize=5), axis=0)
            rows.append([design, words, *(f"{each:.0f}" for each in held), f"{np.mean(held):.0f}"])
    print_table(["design", "noise", *NUMBERS, "mean"], rows)


def one_half(case) -> dict[str, tuple[bool, bool]]:
    """Return for each number whether each half's interval holds the other half's value."""
    points, seed = case
    order, fits = np.random.default_rng(seed).permutation(points.n), []
    for rows in np.array_split(order, 2):
        half = points.only(rows)
        found = fit(half, CHINCHILLA)
        budget = float(points.columns["flops"].max())
        quantities = parameters_of(CHINCHILLA, found.center) + optimum_of(
            CHINCHILLA, found.center, budget, 6.0
        )
        ends = profiles(found, quantities, shared_of(half, found), noise_of(found))
        fits.append(
            {each.name: end for each, end in zip(quantities, ends, strict=True) if each.name in WATCHED}
        )
    one, other = fits
    return {
        name: (
            one[name].low <= other[name].value <= one[name].high,
            other[name].low <= one[name].value <= other[name].high,
        )
        for name in one
    }


def halves(pool, n_tables: int, table: Path | None = None, columns: str = "") -> None:
    print(f"\n{n_tables} splits into halves: how often one half's 90% interval holds the other's value, in %")
    print("right intervals of normal errors hold it in 76 to 78\n")
    n, d = GOOD["245 scattered"]
    tables = {
        f"245 scattered, noise {kind}": plant("steep", (n, d), 0.01, np.random.default_rng(1), kind=kind)
        for kind in (EQUAL, FALLS)
    }
    if table:
        tables |= {table.name: read_points(table, parse_columns(columns))}
    rows = []
    for name, points in tables.items():
        told = pool.map(one_half, [(points, seed) for seed in range(n_tables)], chunksize=2)
        agree = [100 * np.mean([one[each] for one in told]) for each in NUMBERS]
        rows.append([name, *(f"{each:.0f}" for each in agree), f"{np.mean(agree):.0f}"])
    print_table(["table", *NUMBERS, "mean"], rows)


def one_forecast(case) -> tuple[float, ...]:
    """Return if a forecast holds a run of each of TIMES the compute, its half width, and if the form is flagged."""
    truth, kind, size, design, noise, seed = case
    where, random = GOOD[design], np.random.default_rng([seed, 12])
    points = wrong_table(truth, kind, size, where, noise, random)
    found = assess(points, CHINCHILLA)
    told: list[float] = []
    for times in TIMES:
        budget = times * float(points.columns["flops"].max())
        n = np.array([math.exp(log_optimum(CHINCHILLA, found.fit.theta, found.fit.center, budget, 6.0))])
        d = budget / 6 / n
        said = predict(found, {"params": float(n[0]), "tokens": float(d[0])})
        loss = wrong_losses(truth, kind, size, where)(n, d)[0] * math.exp(noise * random.standard_normal())
        told += [said.low <= loss <= said.high, math.log(said.high / said.low) / 2]
    return (*told, found.misfit.status == FLAGGED)


def forecasts(pool, n_tables: int) -> None:
    print(
        f"\n{n_tables} tables a row, 0.5% noise: 90% forecast intervals at {TIMES} times the compute that hold, and"
    )
    print(
        f"their half widths, where a fit without noise is 2% off at {BEYOND} times; how often the form is flagged; the"
    )
    print("best test that there is would flag the last column; all in %\n")
    rows = []
    for design in ("30 points, 6 x 5", "245 scattered"):
        for kind in ("", *WRONG):
            wanted = WRONG_BY if kind else 0.0
            sizes = {each: size_of(each, kind or next(iter(WRONG)), design, wanted) for each in TRUTHS}
            there = [each for each, size in sizes.items() if size is not None]
            chosen = [there[k % len(there)] for k in range(n_tables)]
            cases = [(t, kind or next(iter(WRONG)), sizes[t], design, 0.005, k) for k, t in enumerate(chosen)]
            shares = 100 * np.array(pool.map(one_forecast, cases, chunksize=2))
            cells = [
                text
                for at in range(len(TIMES))
                for text in (f"{shares[:, 2 * at].mean():.0f}", f"{np.median(shares[:, 2 * at + 1]):.1f}")
            ]
            most = (
                f"{100 * np.mean([bound(t, kind, design, 0.005, wanted) for t in there]):.0f}" if kind else ""
            )
            rows.append([design, kind or "the form is right", *cells, f"{shares[:, -1].mean():.0f}", most])
    held = [text for times in TIMES for text in (f"held at {times}", "half width")]
    print_table(["design", "truth", *held, "flagged", "bound"], rows)


def one_tuned(case) -> dict[str, tuple[bool, bool]]:
    """Return for every number whether it is identified, and whether its interval holds the truth."""
    kind, design, is_recorded, seed = case
    truth = [*TRUTHS][seed % 2]
    frame = mistuned_table(kind, design, truth, np.random.default_rng([seed, zlib.crc32(kind.encode())]))
    if not is_recorded:
        frame = frame.loc[frame.groupby(["N", "D"])["loss"].idxmin()].drop(columns="lr")
    found = fit_law(frame, "chinchilla").assessment
    theta = vector(CHINCHILLA, TRUTHS[truth], found.fit.center)
    return {
        each.quantity.name: (
            each.verdict.verdict == IDENTIFIED,
            each.interval.low <= float(each.quantity.measure(theta[None])[0][0]) <= each.interval.high,
        )
        for each in found.estimates
        if each.quantity.name in NUMBERS
    }


def tuned(pool, n_tables: int, designs: Sequence[str] = ("",)) -> None:
    print(
        f"\n{n_tables} tables a row, both truths in turn, 0.5% noise: identified / interval holds the truth, in %\n"
    )
    rows = []
    for design in [each for each in ("30 points, 6 x 5", "245 scattered") if each.startswith(tuple(designs))]:
        for is_recorded, words in ((True, "trials in the table"), (False, "the best of each point")):
            for kind in (RIGHT, HIGH, FEW):
                cases = [(kind, design, is_recorded, seed) for seed in range(n_tables)]
                told = pool.map(one_tuned, cases, chunksize=1)
                shares = {name: 100 * np.mean([one[name] for one in told], axis=0) for name in NUMBERS}
                mean = f"{np.mean([share[0] for share in shares.values()]):.0f}"
                cells = [f"{shares[name][0]:.0f} / {shares[name][1]:.0f}" for name in NUMBERS]
                rows.append([design, words, kind, *cells, mean])
    print_table(["design", "known", "world", *NUMBERS, "mean identified"], rows)


def near(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, of five truths in turn, three of them never used to set the gate\n")
    truths = (*TRUTHS, *HELD_OUT)
    designs = (*NEAR, *(name for name in GOOD if not name.startswith("9")))
    cases = [("chinchilla", name, truths, noise, 0.0) for name in designs for noise in (0.003, 0.01)]
    print_shares(pool, cases, n_tables)


def laws(pool, n_tables: int) -> None:
    print(f"\n{n_tables} tables a row, both truths in turn: covered by the 90% interval / identified, in %")
    print("where a law has no optimum, the loss is that at 10 times its largest columns\n")
    cases = [
        (law, design, (*TRUTHS,), noise, 0.0)
        for law in LAWS
        if law != "chinchilla"
        for design in ("12 points, 4 x 3", "30 points, 6 x 5", "245 scattered")
        for noise in (0.003, 0.01, 0.02)
    ]
    print_shares(pool, cases, n_tables)


def one_optimum(case) -> tuple[float, int, int]:
    """Return the others' best gain over a fit, and the starts that reached the optimum."""
    law, delta, hops, starts, seed = case
    found = fit(random_table(seed), LAWS[law], delta)
    return scipys_gain(found, hops, starts), found.n_reached, found.n_starts


def optima(pool, n_tables: int) -> None:
    n_tables = min(n_tables, 100)
    print(
        f"\n{n_tables} random tables a row, half of them of bad design, against SciPy: basin hopping, 30 hops from"
    )
    print("the fit's own optimum, and L-BFGS-B from 1,000 random vectors, the best 5 of them to the end\n")
    rows = []
    for law, tables in (("chinchilla", n_tables), ("joint", n_tables // 4), ("kaplan", n_tables // 4)):
        for name, delta in OBJECTIVES.items():
            cases = [(law, delta, 30, 1000 if law == "chinchilla" else 100, seed) for seed in range(tables)]
            gains, reached, starts = np.array(pool.map(one_optimum, cases, chunksize=2)).T
            lower = f"{(gains > 1e-9).sum()} of {tables}"
            share = f"{reached.sum() / starts.sum():.0%}"
            rows.append([law, name, lower, f"{max(gains.max(), 0):.1e}", share])
    print_table(["law", "delta", "SciPy lower by over 1e-9", "largest gain", "starts at the optimum"], rows)


def one_bootstrap(case) -> float:
    """Return the share of 256 refits that missed their optimum; all of them are checked from all over the grid."""
    design, truth, noise, seed = case
    points = plant(truth, DESIGNS[design], noise, np.random.default_rng([seed, 3]))
    return bootstrap(fit(points, CHINCHILLA), 256, n_checked=256).missed


def refits(pool, n_tables: int) -> None:
    n_tables = max(2, n_tables // 20)
    print(
        f"\nof 256 bootstrap refits of each of {n_tables} tables a cell, the share that missed its optimum\n"
    )
    rows = []
    for design in (*GOOD, *BAD):
        cells = []
        for noise in NOISES:
            cases = [(design, list(TRUTHS)[k % 2], noise, k) for k in range(n_tables)]
            cells.append(f"{np.mean(pool.map(one_bootstrap, cases, chunksize=1)):.2%}")
        rows.append([design, *cells])
    print_table(["design", *(f"noise {noise:.1%}" for noise in NOISES)], rows)


def times() -> None:
    rows = []
    for design in ("9 points, 3 x 3", "30 points, 6 x 5", "245 scattered"):
        points = plant("steep", GOOD[design], 0.01, np.random.default_rng(0))
        found = fit(points, CHINCHILLA)
        alpha = parameters_of(CHINCHILLA, found.center)[2]
        spent = [f"{1e3 * _median(work):.0f} ms" for work in _works(points, found, alpha)]
        start = time.perf_counter()
        missed = bootstrap(found, 4000).missed
        rows.append([design, *spent, f"{time.perf_counter() - start:.1f} s", f"{missed:.1%}"])
    print(
        "\nfits and profiles on one thread, refits on all cores; they start from the optimum and three more\n"
    )
    print_table(["design", "fit", "profile of alpha", "4,000 bootstrap refits", "missed"], rows)


def _works(points, found, alpha):
    return (lambda: fit(points, CHINCHILLA)), (lambda: profiles(found, [alpha]))


def _median(work) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    parts = {"coverage": coverage, "noises": noises, "forecasts": forecasts, "halves": halves}
    parts |= {"near": near, "laws": laws, "optimum": optima, "refits": refits, "tuned": tuned}
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=[*parts, "time"])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--designs", nargs="+", default=[""], metavar="BEGINNING", help="those of noises and tuned"
    )
    parser.add_argument("--table", type=Path, help="a table whose halves are compared too")
    parser.add_argument("--columns", default="params=N,tokens=D,loss=loss")
    asked = parser.parse_args()
    print(setting(), flush=True)
    if "time" in asked.parts:
        times()
    parts["noises"] = partial(noises, designs=asked.designs)
    parts["tuned"] = partial(tuned, designs=asked.designs)
    parts["halves"] = partial(halves, table=asked.table, columns=asked.columns)
    with Pool(asked.processes) as pool:
        for name, part in parts.items():
            if name in asked.parts:
                part(pool, asked.tables)


if __name__ == "__main__":
    main()
