"""Dropout whose masks depend on (seed, iteration, site, element) and on nothing else.

A counter-based hash instead of a generator: a run's masks are the same in any slot of any stack on any device,
and there is no state to save. The elements' own hash is kept, so a mask costs two multiplications an element.
Mixing constants: lowbias32 of Wellons, "Prospecting for hash functions" (2018), here on wrapping int32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MIX = (0x7FEB352D, -0x7B935975)  # 0x7feb352d and 0x846ca68b as int32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def element_hashes(count: int, device: torch.device) -> Tensor:
    """Return well-mixed int32 numbers [count] for element 0, 1, 2 …; made once, for a step only reads them."""
    mixed = _splitmix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(device)


class Dropout:
    """The dropout of one step of a stack: K runs, each with its own seed, iteration and probability.

    `seeds` are the runs' dropout keys (63 bits), `probabilities` lie in [0, 1); `elements` has the hashes of at
    least as many elements as a run drops at one site.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        iterations: Sequence[int],
        probabilities: Sequence[float],
        n_sites: int,
        elements: Tensor,
    ) -> None:
        with np.errstate(over="ignore"):
            state = np.array(seeds, np.uint64) + np.array(iterations, np.uint64) * _GOLDEN
            sites = np.arange(1, n_sites + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
            keys = _splitmix(_splitmix(state)[:, None] + sites) >> np.uint64(32)
        chance = np.array(probabilities, np.float64)
        device = elements.device
        self._elements = elements
        self._keys = torch.from_numpy(keys.astype(np.uint32).view(np.int32)).to(device)
        # An element is kept when its signed 32-bit number reaches the threshold.
        threshold = torch.from_numpy((chance * 2.0**32 - 2.0**31).astype(np.int32))
        self._threshold = threshold[:, None].to(device)
        self._scale = torch.from_numpy(1.0 / (1.0 - chance)).float()[:, None].to(device)

    def __call__(self, x: Tensor, site: int) -> Tensor:
        """Drop elements of x [K * n, …] (run-major), scaling the kept ones by 1 / (1 - p)."""
        n_runs = len(self._keys)
        hashed = self._elements[: x.numel() // n_runs] ^ self._keys[:, site, None]
        hashed.mul_(_MIX[0])
        hashed ^= hashed >> 15  # arithmetic: clears the sign bit, which the next product sets anew
        hashed.mul_(_MIX[1])
        return x * ((hashed >= self._threshold) * self._scale).view(x.shape)
