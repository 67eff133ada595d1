"""Dropout whose masks depend on (seed, iteration, site, element) and on nothing else.

A counter-based hash instead of a generator: a run's masks are the same in any slot of any stack on any device,
and there is no state to save. The elements' own hash is kept, so a mask costs two multiplications an element.
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
    """Return well-mixed int32 numbers for element 0, 1, 2 …; made once, for a step only reads them."""
    mixed = _splitmix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(device)


@dataclass(frozen=True)
class Site:
    """A place in a model where something is dropped: its number, the kind, and the share of the kind's chance."""

    index: int
    kind: str
    share: float = 1.0


@lru_cache(64)  # a step asks for those of its runs again
def _threshold_and_scale(chances: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what a kept element's signed 32-bit number reaches, and what it is multiplied by, [K, 1]."""
    chance = np.array(chances, np.float64)
    threshold = torch.from_numpy((chance * 2.0**32 - 2.0**31).astype(np.int32))
    scale = torch.from_numpy(1.0 / (1.0 - chance)).float()
    return threshold[:, None].to(device), scale[:, None].to(device)


class Columns(NamedTuple):
    """What a step's masks depend on at every site where some run drops: keys, thresholds and scales [K, sites]."""

    keys: Int[Tensor, "K S"]
    thresholds: Int[Tensor, "K S"]
    scales: Float[Tensor, "K S"]


class Dropout:
    """The dropout of one step of a stack: K runs, each with its own seed, iteration and chances.

    `seeds` are the runs' dropout keys (63 bits), `chances` each run's probability in [0, 1) by kind of site; a
    kind that no run has is not dropped at all. `elements` has the hashes of at least as many elements as a run
    drops at one site.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        iterations: Sequence[int],
        chances: Sequence[Mapping[str, float]],
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
        # Of each site where some run drops: the runs' keys, the thresholds and the scales, all [K, 1].
        self._dropped: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for name, site in sites.items():
            chance = tuple([run.get(site.kind, 0.0) * site.share for run in chances])
            if any(chance):
                self._dropped[name] = (columns[site.index], *_threshold_and_scale(chance, elements.device))

    @classmethod
    def of(cls, columns: Columns, sites: Sequence[str], elements: Int[Tensor, "n"]) -> Dropout:
        """Return the dropout that has these columns, at these sites."""
        found = cls.__new__(cls)
        found._elements, found._n_runs = elements, columns.keys.shape[0]
        each = zip(*(torch.split(part, 1, dim=1) for part in columns), strict=True)
        found._dropped = dict(zip(sites, each, strict=True))
        return found

    def columns(self) -> Columns:
        """Return what the masks depend on, at the sites in their order."""
        return Columns(*(torch.cat(part, dim=1) for part in zip(*self._dropped.values(), strict=True)))

    @property
    def sites(self) -> list[str]:
        """Return the sites where some run drops."""
        return [*self._dropped]

    def drops(self, site: str) -> bool:
        """Return whether some run drops anything at a site."""
        return site in self._dropped

    def mask(self, count: int, site: str) -> Float[Tensor, "K {count}"]:
        """Return the factors of a run's elements at a site: 0, or 1 / (1 - p)."""
        keys, threshold, scale = self._dropped[site]
        hashed = self._elements[:count] ^ keys
        hashed.mul_(_MIX[0])
        hashed ^= hashed >> 15  # arithmetic: clears the sign bit, which the next product sets anew
        hashed.mul_(_MIX[1])
        return (hashed >= threshold) * scale

    def __call__(self, x: Tensor, site: str) -> Tensor:
        """Drop elements of x [K * n, …] (run-major) where some run does, scaling the kept ones by 1 / (1 - p)."""
        if site not in self._dropped:
            return x
        return x * self.mask(x.numel() // self._n_runs, site).view(x.shape)
