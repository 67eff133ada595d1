"""The optimizers: a file each, one table."""

from __future__ import annotations

from sweeplab.train.optimizers.adafactor import Adafactor
from sweeplab.train.optimizers.adam import Adam
from sweeplab.train.optimizers.adamw import AdamW
from sweeplab.train.optimizers.base import Optimizer
from sweeplab.train.optimizers.base import Rates as Rates
from sweeplab.train.optimizers.lion import Lion
from sweeplab.train.optimizers.muon import Muon
from sweeplab.train.optimizers.sgd import SGD

OPTIMISERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "lion": Lion,
    "muon": Muon,
    "adafactor": Adafactor,
}
