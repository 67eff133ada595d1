"""The optimisers: a file each, one table."""

from __future__ import annotations

from sweeplab.train.optimisers.adafactor import Adafactor
from sweeplab.train.optimisers.adam import Adam
from sweeplab.train.optimisers.adamw import AdamW
from sweeplab.train.optimisers.base import Optimiser
from sweeplab.train.optimisers.base import Rates as Rates
from sweeplab.train.optimisers.lion import Lion
from sweeplab.train.optimisers.muon import Muon
from sweeplab.train.optimisers.sgd import SGD

OPTIMISERS: dict[str, type[Optimiser]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "lion": Lion,
    "muon": Muon,
    "adafactor": Adafactor,
}
