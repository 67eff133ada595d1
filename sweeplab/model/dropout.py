"""Dropout whose masks depend only on (seed, iteration, site, element).

A counter-based hash replaces the random generator: a run's masks are the same in any row of any stack on any device,
and no generator state is saved. Each element's hash is computed once, so a mask costs two multiplications per element.
Mixing constants: lowbias32 of Wellons, "Prospecting for hash functions" (2018), here on wrapping int32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_MIX = (0x7FEB352D, -0x7B935975)  # 0x7feb352d and 0x846ca68b as int32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def element_hashes(count: int, device: torch.device) -> Int[Tensor, "{count}"]:
    """Return int32 hashes of the elements 0, 1, 2 …; steps only read them, so they are computed once."""
    mixed = _splitmix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(device)


@dataclass(frozen=True)
class Site:
    """A place of dropout in a model: its number, its kind, and the factor (`share`) of its kind's dropout rate."""

    index: int
    kind: str
    share: float = 1.0


@lru_cache(64)  # consecutive steps ask for the same rates
def _threshold_and_scale(rates: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the smallest int32 hash of a kept element, and the factor of kept elements, each [K, 1]."""
    rate = np.array(rates, np.float64)
    threshold = torch.from_numpy((rate * 2.0**32 - 2.0**31).astype(np.int32))
    scale = torch.from_numpy(1.0 / (1.0 - rate)).float()
    return threshold[:, None].to(device), scale[:, None].to(device)


class MaskInputs(NamedTuple):
    """The inputs of a step's masks: keys, thresholds and scales [K, S] of the S sites where some run drops."""

    keys: Int[Tensor, "K S"]
    thresholds: Int[Tensor, "K S"]
    scales: Float[Tensor, "K S"]


class Dropout:
    """The dropout of one step of a stack: K runs, each with its own seed, iteration and dropout rates.

    `seeds` are the runs' dropout keys (63 bits). `rates` has each run's probability in [0, 1) by kind of site; sites
    where it is 0 for all runs are skipped. `elements` has the hashes of at least as many elements as a run has at one
    site.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        iterations: Sequence[int],
        rates: Sequence[Mapping[str, float]],
        sites: Mapping[str, Site],
        elements: Int[Tensor, "n"],
    ) -> None:
        self._elements, self._n_runs = elements, len(seeds)
        with np.errstate(over="ignore"):
            state = np.array(seeds, np.uint64) + np.array(iterations, np.uint64) * _GOLDEN
            numbers = np.arange(1, len(sites) + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
            keys = _splitmix(_splitmix(state) + numbers[:, None]) >> np.uint64(32)
        by_site = torch.from_numpy(keys.astype(np.uint32).view(np.int32)).to(elements.device)
        columns = by_site.unsqueeze(2).unbind()
        # For each site where some run drops: the runs' keys, thresholds and scales, each [K, 1].
        self._dropped: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, site in sites.items():
            rate = tuple([run.get(site.kind, 0.0) * site.share for run in rates])
            if any(rate):
                self._dropped[name] = (columns[site.index], *_threshold_and_scale(rate, elements.device))

    @classmethod
    def of(cls, inputs: MaskInputs, sites: Sequence[str], elements: Int[Tensor, "n"]) -> Dropout:
        """Return the dropout with these mask inputs at these sites."""
        found = cls.__new__(cls)
        found._elements, found._n_runs = elements, inputs.keys.shape[0]
        each = zip(*(torch.split(part, 1, dim=1) for part in inputs), strict=True)
        found._dropped = dict(zip(sites, each, strict=True))
        return found

    def mask_inputs(self) -> MaskInputs:
        """Return the inputs of the masks at `sites`, in their order."""
        return MaskInputs(*(torch.cat(part, dim=1) for part in zip(*self._dropped.values(), strict=True)))

    @property
    def sites(self) -> list[str]:
        """Return the sites where some run drops."""
        return [*self._dropped]

    def drops(self, site: str) -> bool:
        """Return whether some run drops anything at a site."""
        return site in self._dropped

    def mask(self, count: int, site: str) -> Float[Tensor, "K {count}"]:
        """Return the factor of each of a run's `count` elements at a site: 0, or 1 / (1 - p)."""
        keys, threshold, scale = self._dropped[site]
        hashed = self._elements[:count] ^ keys
        hashed.mul_(_MIX[0])
        hashed ^= hashed >> 15  # an arithmetic shift clears the sign bit; the next product sets it again
        hashed.mul_(_MIX[1])
        return (hashed >= threshold) * scale

    def __call__(self, x: Tensor, site: str) -> Tensor:
        """Drop elements of x [K * n, …] (run-major) at a site, and scale the kept ones by 1 / (1 - p)."""
        if site not in self._dropped:
            return x
        return x * self.mask(x.numel() // self._n_runs, site).view(x.shape)
