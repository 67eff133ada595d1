"""The classes of `transformers` that a run can be written for, and read from: one file each, and a row here."""

from sweeplab.hf.architectures.base import Architecture as Architecture
from sweeplab.hf.architectures.bert import BERT
from sweeplab.hf.architectures.gpt2 import GPT2
from sweeplab.hf.architectures.llama import LLAMA
from sweeplab.hf.architectures.t5 import T5

ARCHITECTURES: dict[str, Architecture] = {each.model_type: each for each in (GPT2, LLAMA, BERT, T5)}
# Where config.json has these, for which it has no keys of its own: how a text was laid out.
LAYOUT_KEY = "sweeplab"
LAYOUT = ("objective", "mask_share", "span_length")
