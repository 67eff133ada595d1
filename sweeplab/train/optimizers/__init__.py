"""The optimizers by name. To add one, write a class in a file of this folder and a row of OPTIMIZERS."""

from __future__ import annotations

from sweeplab.train.optimizers.base import Optimizer
from sweeplab.train.optimizers.elementwise import SGD, Adam, AdamW, Lion
from sweeplab.train.optimizers.matrixwise import Adafactor, Muon

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "lion": Lion,
    "muon": Muon,
    "adafactor": Adafactor,
}
