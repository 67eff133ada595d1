"""Measure what 90% intervals of laws hold, what is identified, and how often forms are flagged, on planted tables.

Run: python tests/benchmarks/coverage.py [coverage verdicts undeclared forms path isoflop next ranks] [--tables 100]
[--seed 5000] [--designs 12 30]
"""

import argparse
import math
import os
import sys
import zlib
from multiprocessing import Pool
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from benchmarks.setting import print_table, setting
from laws.planted_budgets import DESIGNS, drifting, exponent
from laws.planted_laws import (
    BAD,
    EQUAL,
    FALLS,
    GOOD,
    HEAVY,
    HELD_OUT,
    TRUTHS,
    losses,
    plant,
    values_of,
)
from laws.planted_misfit import FIVE_PERCENT, wrong_losses, wrong_table
from laws.planted_paths import plant_path
from laws.planted_undeclared import WORLDS as UNDECLARED
from laws.planted_undeclared import undeclared_table
from scipy.stats import chisquare

from sweeplab.laws.assessment import IDENTIFIED, NOT_IDENTIFIED, assess, predict
from sweeplab.laws.check import FLAGGED
from sweeplab.laws.core import MOST_SHARED, TILT_SD, RowErrors, fit_law, interval
from sweeplab.laws.fitting import fit
from sweeplab.laws.forms import LAWS, TOLERANCES, log_n_opt, loss_at, optimum_of, parameters_of
from sweeplab.laws.isoflop import isoflop
from sweeplab.laws.next_runs import find_quantity, next_runs
from sweeplab.laws.points import EACH, Points

CHINCHILLA = LAWS["chinchilla"]
EVERY = TRUTHS | HELD_OUT
NOISES = {
    "equal": (EQUAL, 0.0),
    "falls with D": (FALLS, 0.0),
    "t3": (HEAVY, 0.0),
    "36% shared": (EQUAL, 0.36),
}
NUMBERS = ("E", "alpha", "beta", "tokens per parameter", "loss at target")
TIMES = (3, 10)


def best_run(true, budget):
    """Return N_opt and D_opt of a truth at a budget."""
    log_nd = math.log(budget / 6)
    n = math.exp(float(log_n_opt(CHINCHILLA, true, log_nd)[0]))
    return {"params": n, "tokens": math.exp(log_nd) / n}


def numbers_of(true, budget):
    """Return the quantities of NUMBERS, the last two at ten times a budget."""
    found = parameters_of(CHINCHILLA) + optimum_of(CHINCHILLA, 10 * budget, 6.0)
    found.append(loss_at(CHINCHILLA, best_run(true, 10 * budget)))
    return {each.name: each for each in found if each.name in NUMBERS}


def one_table(case):
    """Return for each number the side of its interval on which the truth lies, and how much wider it is than needed.

    Needed is the width of a core that is told how the noise grows, and that nothing is shared.
    """
    design, truth, noise, kind, shared, seed = case
    random = np.random.default_rng([seed, zlib.crc32(repr(case[:5]).encode())])
    points = plant(truth, GOOD[design], noise, random, shared, kind)
    found, true = fit(points, CHINCHILLA), values_of(EVERY[truth])
    logs = {name: np.log(points.columns[name]) for name in ("params", "tokens")}
    center = {name: log.mean() for name, log in logs.items()}
    logs = {name: log - center[name] for name, log in logs.items()}
    tilt = 0.5 if kind == FALLS else 0.0
    noise = RowErrors(np.zeros(points.n), None, np.exp(tilt * logs["tokens"]))
    priors, design_of = CHINCHILLA.priors(False), CHINCHILLA.design(logs)
    told = fit_law(points.columns["loss"], design_of, priors, noise)
    told_values = {"E": told.scales[:, 0]}
    for place, term in enumerate(CHINCHILLA.terms):
        power = told.shapes[:, place]
        told_values |= {term.exponent: power}
        told_values |= {
            term.scale: told.scales[:, place + 1] * np.exp(power * center[term.column])
        }
    sides = []
    for quantity in numbers_of(true, float(points.columns["flops"].max())).values():
        _, low, high = interval(quantity.measure(found.values))
        _, least, most = interval(quantity.measure(told_values))
        value = float(quantity.measure(true)[0])
        sides.append([float((value > high) - (value < low)), (high - low) / (most - least)])
    return sides


def coverage(pool, n_tables, seed, designs):
    """Print held, the truth below and above in %, and the median width over what is needed."""
    truths, rows = (*TRUTHS, *[*HELD_OUT][1:]), []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        for name, (kind, shared) in NOISES.items():
            if shared and design.startswith("245"):
                continue  # no two of its rows have one size
            cells = []
            for truth in truths:
                for noise in (0.003, 0.01):
                    cases = [
                        (design, truth, noise, kind, shared, seed + at)
                        for at in range(n_tables)
                    ]
                    cells.append(np.array(pool.map(one_table, cases, chunksize=5)))
            every = np.concatenate(cells)
            texts = []
            for at in range(len(NUMBERS)):
                below, above = (100 * (side * every[:, at, 0] > 0).mean() for side in (-1, 1))
                width = np.median(every[:, at, 1])
                texts.append(
                    f"{100 - below - above:.1f} ({below:.1f}, {above:.1f}) {width:.2f}"
                )
            lowest = min((cell[:, :, 0] == 0).mean(0).min() for cell in cells)
            rows.append([design, name, *texts, f"{100 * lowest:.0f}"])
    print_table(["design", "noise", *NUMBERS, "lowest cell"], rows)


def one_verdict(case):
    """Return for each number whether it is identified, refused, and if identified outside its interval or tolerance."""
    design, seed = case
    truth = [*TRUTHS][seed % 2]
    points = plant(truth, (GOOD | BAD)[design], 0.004, np.random.default_rng([seed, 31]))
    told = []
    for each in assess(points, CHINCHILLA).estimates:
        true, is_identified = (
            float(each.quantity.measure(values_of(EVERY[truth]))[0]),
            each.verdict.verdict == IDENTIFIED,
        )
        tolerance = TOLERANCES[each.quantity.kind]
        most = math.log(tolerance.identified) if tolerance.is_factor else tolerance.identified
        outside = is_identified and not each.low <= true <= each.high
        far = is_identified and abs(each.value - true) > most
        told.append((is_identified, each.verdict.verdict == NOT_IDENTIFIED, outside, far))
    return told


def verdicts(pool, n_tables, seed, designs):
    """Print how often numbers are identified and refused, and identified ones outside interval and tolerance."""
    rows, names = (
        [],
        [each.name for each in parameters_of(CHINCHILLA) + optimum_of(CHINCHILLA, 1e18, 6.0)],
    )
    for design in [name for name in GOOD | BAD if name.startswith((*designs, "one ray"))]:
        cases = [(design, seed + at) for at in range(n_tables)]
        told = np.array(pool.map(one_verdict, cases, chunksize=2), float)
        for at, name in enumerate(names):
            shares, identified = 100 * told[:, at].mean(0), max(told[:, at, 0].sum(), 1)
            wrong = 100 * told[:, at, 2:].sum(0) / identified
            rows.append(
                [
                    design,
                    name,
                    *(f"{each:.0f}" for each in shares[:2]),
                    *(f"{each:.1f}" for each in wrong),
                ]
            )
    print_table(
        ["design", "number", "identified", "refused", "outside interval", "outside tolerance"],
        rows,
    )


def one_undeclared(case):
    """Return for each number whether its interval holds, is identified, and its width over that of the straight fit."""
    world, design, seed = case
    truth = [*TRUTHS][seed % 2]
    points = undeclared_table(
        world, truth, GOOD[design], 0.004, np.random.default_rng([seed, 41])
    )
    assessed, true = assess(points, CHINCHILLA), values_of(EVERY[truth])
    told = []
    for quantity in numbers_of(true, float(points.columns["flops"].max())).values():
        each = assessed.estimate(quantity)
        is_bent = quantity.kind == "loss"
        _, low, high = interval(quantity.measure(fit(points, CHINCHILLA, is_bent).values))
        held = each.low <= float(quantity.measure(true)[0]) <= each.high
        told.append(
            [held, each.verdict.verdict == IDENTIFIED, (each.high - each.low) / (high - low)]
        )
    return told


def undeclared(pool, n_tables, seed, designs):
    """Print what weak intervals hold, their widths over those of the fit alone, and what is identified."""
    rows = []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        for world in UNDECLARED:
            cases = [(world, design, seed + at) for at in range(n_tables)]
            told = np.array(pool.map(one_undeclared, cases, chunksize=2))
            texts = [
                f"{100 * told[:, at, 0].mean():.0f}, {np.median(told[:, at, 2]):.1f}"
                for at in range(len(NUMBERS))
            ]
            rows.append([design, world, *texts, f"{100 * told[:, :, 1].mean():.0f}"])
    print_table(
        ["design", "world", *(f"{name}: held, width" for name in NUMBERS), "identified"], rows
    )


def one_form(case):
    """Return whether a form is flagged, and of forecasts of runs at TIMES the compute: held, half width."""
    kind, design, noise, shared, seed = case
    random, truth = (
        np.random.default_rng([seed, zlib.crc32(kind.encode())]),
        [*TRUTHS][seed % 2],
    )
    if kind:
        points = wrong_table(truth, kind, FIVE_PERCENT[kind], GOOD[design], noise, random)
        law = wrong_losses(truth, kind, FIVE_PERCENT[kind], GOOD[design])
    else:
        points = plant(truth, GOOD[design], noise, random, shared)
        law = lambda n, d: losses(TRUTHS[truth], n, d)  # noqa: E731
    assessed = assess(points, CHINCHILLA)
    told = [float(assessed.misfit.status == FLAGGED)]
    for times in TIMES:
        params = math.sqrt(times * float(points.columns["flops"].max()) / 6 / 20)
        said = predict(assessed, {"params": params, "tokens": 20 * params})
        outcome = float(law(np.array([params]), np.array([20 * params]))[0])
        outcome *= math.exp(noise * random.standard_normal())
        told += [float(said.low <= outcome <= said.high), math.log(said.high / said.low) / 2]
    return told


def forms(pool, n_tables, seed, designs):
    """Print how often right forms and wrong ones are flagged, and what forecasts hold."""
    rows = []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        for noise in (0.003, 0.004):
            for kind, shared in [
                ("", 0.0),
                ("", 0.36),
                *((kind, 0.0) for kind in FIVE_PERCENT),
            ]:
                cases = [(kind, design, noise, shared, seed + at) for at in range(n_tables)]
                told = 100 * np.mean(pool.map(one_form, cases, chunksize=2), axis=0)
                texts = [f"{told[at]:.0f}, {told[at + 1]:.1f}" for at in (1, 3)]
                name = kind or f"right, {shared:.0%} shared by size"
                rows.append([design, f"{noise:.1%}", name, f"{told[0]:.0f}", *texts])
    print_table(
        [
            "design",
            "noise",
            "truth",
            "flagged",
            *(f"{each}x: held, half width" for each in TIMES),
        ],
        rows,
    )


def one_path(case):
    """Return whether alpha is held and identified, and whether forecasts at 3 and 10 times the compute hold."""
    n_sizes, jitter, seed = case
    random, truth = np.random.default_rng([seed, n_sizes]), (1.2, 60.0, 0.45)
    assessed = assess(plant_path(n_sizes, jitter, truth, random), LAWS["power-n"])
    alpha = next(each for each in assessed.estimates if each.quantity.name == "alpha")
    told = [alpha.low < truth[2] < alpha.high, alpha.verdict.verdict == IDENTIFIED]
    for times in TIMES:
        n = 1.6e5 * math.sqrt(times)
        said = predict(assessed, {"params": n})
        told.append(said.low < truth[0] + truth[1] * n ** -truth[2] < said.high)
    return told


def path(pool, n_tables, seed, designs):
    """Print the shares for tables along a path, tokens 20 a parameter."""
    rows = []
    for n_sizes in (5, 6, 8):
        for jitter in (0.0, 0.06):
            cases = [(n_sizes, jitter, seed + at) for at in range(n_tables)]
            shares = 100 * np.mean(pool.map(one_path, cases, chunksize=2), axis=0)
            rows.append([str(n_sizes), f"{jitter:.0%}", *(f"{share:.0f}" for share in shares)])
    print_table(
        ["sizes", "off the path", "alpha held", "identified", "3x held", "10x held"], rows
    )


def one_isoflop(case):
    """Return whether the interval of N_opt's exponent holds; None without a number."""
    design, seed = case
    truth = [*TRUTHS][seed % 2]
    number = isoflop(
        drifting(truth, DESIGNS[design], 0.003, np.random.default_rng(seed))
    ).numbers
    ends = number["N_opt exponent"]
    return None if ends["low"] is None else ends["low"] <= exponent(truth) <= ends["high"]


def isoflops(pool, n_tables, seed, designs):
    """Print how often the interval of N_opt's exponent from curves at equal FLOPs holds."""
    rows = []
    for design in DESIGNS:
        told = pool.map(
            one_isoflop, [(design, seed + at) for at in range(n_tables)], chunksize=5
        )
        seen = [held for held in told if held is not None]
        share = f"{100 * np.mean(seen):.0f}" if seen else "none"
        rows.append([design, share, f"{len(seen)} of {n_tables}"])
    print_table(["design", "held", "with a number"], rows)


def one_promise(seed):
    """Return the half width of a number after the chosen runs are made, over the promised one."""
    truth = [*TRUTHS][seed % 2]
    design = ("12 points, 4 x 3", "30 points, 6 x 5")[seed // 2 % 2]
    points = plant(truth, GOOD[design], 0.005, np.random.default_rng([seed, 4]))
    assessed = assess(points, CHINCHILLA)
    quantity, chosen = find_quantity(assessed, None), next_runs(assessed)
    rows = np.repeat(np.arange(len(chosen.counts)), chosen.counts.astype(int))
    new = {name: column[rows] for name, column in chosen.candidates.columns.items()}
    noise = np.exp(0.005 * np.random.default_rng([seed, 5]).standard_normal(len(rows)))
    new["loss"] = losses(TRUTHS[truth], new["params"], new["tokens"]) * noise
    columns = {name: np.append(column, new[name]) for name, column in points.columns.items()}
    refitted = fit(Points(columns, np.ones(points.n + len(rows)), tuned=EACH), CHINCHILLA)
    _, low, high = interval(quantity.measure(refitted.values))
    return (high - low) / 2 / chosen.then


def promises(pool, n_tables, seed, designs):
    """Print how often the promise of the next runs is kept within a factor 1.25."""
    ratios = np.array(pool.map(one_promise, range(seed, seed + n_tables), chunksize=2))
    print_table(
        ["tables", "realized at most 1.25 times", "median"],
        [[str(n_tables), f"{100 * (ratios <= 1.25).mean():.0f}%", f"{np.median(ratios):.2f}"]],
    )


def prior_table(design, is_bent, random):
    """Return the centered logs of a design, losses of a law drawn from the priors, and its shape parameters and E.

    Scales and the noise have improper priors. Here the noise is log-uniform on 0.1 to 1%, and the scales are those of
    the prior whose losses all lie between 1 and 8: of many proposals one is taken in proportion to its density.
    """
    n, d = GOOD[design]
    logs = {"params": np.log(n) - np.log(n).mean(), "tokens": np.log(d) - np.log(d).mean()}
    priors = CHINCHILLA.priors(is_bent)
    places = np.stack([prior(random.uniform(size=20_000)) for prior in priors], 1)
    columns = CHINCHILLA.design(logs, is_bent)(places)
    scales = random.uniform(0, 8, (len(places), columns.shape[2])) / columns.max(1)
    losses_of = (columns @ scales[:, :, None])[:, :, 0]
    volume = np.linalg.slogdet(columns.transpose(0, 2, 1) @ columns)[1] / 2 - np.log(
        columns.max(1)
    ).sum(1)
    density = np.where(
        (losses_of.min(1) > 1) & (losses_of.max(1) < 8), np.exp(volume - volume.max()), 0.0
    )
    at = random.choice(len(places), p=density / density.sum())
    group = np.unique(n.round(6), return_inverse=True)[1]
    tilt, shared = TILT_SD * random.standard_normal(), random.uniform(0, MOST_SHARED)
    own = np.sqrt(1 - shared) * random.standard_normal(len(n))
    error = own + np.sqrt(shared) * random.standard_normal(group.max() + 1)[group]
    error *= np.exp(random.uniform(np.log(0.001), np.log(0.01)) + tilt * logs["tokens"])
    truth = np.array([*places[at], np.log(scales[at, 0]), tilt, shared])
    return logs, losses_of[at] / (1 - error), truth


def one_rank(case):
    """Return the shares of draws that lie below the truth, of every unknown."""
    design, is_bent, seed = case
    logs, loss, truth = prior_table(design, is_bent, np.random.default_rng([seed, 6]))
    group = np.unique(logs["params"].round(6), return_inverse=True)[1]
    noise = RowErrors(logs["tokens"], group, np.ones(len(loss)))
    draws = fit_law(loss, CHINCHILLA.design(logs, is_bent), CHINCHILLA.priors(is_bent), noise)
    drawn = np.column_stack(
        [draws.shapes, np.log(draws.scales[:, 0]), draws.tilt, draws.shared]
    )
    return (drawn < truth).mean(0)


def ranks(pool, n_tables, seed, designs):
    """Print the chance of ranks as far from uniform, of truths drawn from the priors (Talts et al. 2018)."""
    rows = []
    for design in [name for name in GOOD if name.startswith(tuple(designs))]:
        for is_bent in (False, True):
            cases = [(design, is_bent, seed + at) for at in range(n_tables)]
            shares = np.array(pool.map(one_rank, cases, chunksize=5))
            departures = CHINCHILLA.departures_of if is_bent else ()
            names = [*CHINCHILLA.exponents, *departures, "E", "tilt", "shared"]
            for name, share in zip(names, shares.T, strict=True):
                counts = np.histogram(share, 20, (0, 1))[0]
                chance = chisquare(counts).pvalue
                inside = (np.abs(share - 0.5) < 0.45).mean()
                rows.append(
                    [
                        design,
                        "bent" if is_bent else "straight",
                        name,
                        f"{chance:.3f}",
                        f"{100 * inside:.0f}",
                    ]
                )
    print_table(["design", "form", "number", "chance", "held by 90%"], rows)


def main():
    parts = {
        "coverage": coverage,
        "verdicts": verdicts,
        "undeclared": undeclared,
        "forms": forms,
        "path": path,
        "isoflop": isoflops,
        "next": promises,
        "ranks": ranks,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=[*parts])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--designs", nargs="+", default=["12", "30", "245"], metavar="BEGINNING"
    )
    asked = parser.parse_args()
    print(setting(), flush=True)
    with Pool(asked.processes) as pool:
        for name in asked.parts:
            print(f"\n{name}, {asked.tables} tables a cell, in %", flush=True)
            parts[name](pool, asked.tables, asked.seed, asked.designs)


if __name__ == "__main__":
    main()
