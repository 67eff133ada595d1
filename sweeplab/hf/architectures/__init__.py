"""The classes of `transformers` that a run can be written for, and read from: one file each, and a row here."""

from sweeplab.hf.architectures.base import Architecture as Architecture
from sweeplab.hf.architectures.bert import BERT
from sweeplab.hf.architectures.gpt2 import GPT2
from sweeplab.hf.architectures.llama import LLAMA
from sweeplab.hf.architectures.t5 import T5

ARCHITECTURES: dict[str, Architecture] = {each.model_type: each for each in (GPT2, LLAMA, BERT, T5)}
OBJECTIVE_KEY = "sweeplab_objective"  # of config.json, whose own keys do not say how a text was laid out
