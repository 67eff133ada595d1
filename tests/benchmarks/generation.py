"""Time 512 new tokens with and without the KV cache on one CPU thread; both must give the same tokens.

Run: python tests/benchmarks/generation.py [new tokens]. Decoders of 4 layers, 4 heads, width 128, a byte vocabulary and
a context that holds the whole text, with random weights, generate greedily; seconds are CPU time, one after the other.
The last row is an encoder-decoder that reads a source of 64 tokens.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.setting import print_table, setting

from sweeplab.data.prompts import Prompt
from sweeplab.model.attention import why_not
from sweeplab.model.generation import Reader, Sampler, Sampling, sample
from sweeplab.model.shape import ModelShape
from sweeplab.model.transformer import Transformer

N_BYTES, START = 256, 16
CASES = (
    *({"positions": positions} for positions in ("learned", "rotary", "alibi", "relative")),
    *({"attention": attention, "positions": "rotary"} for attention in ("local", "strided", "linear")),
    {"positions": "rotary", "n_kv_head": 1},
    {"positions": "rotary", "n_expert": 4, "n_expert_active": 2},
    {"family": "encoder_decoder"},
)


def seconds(model: Transformer, weights: dict[str, torch.Tensor], prompt: Prompt, n_new: int, caches: bool):
    """Return the CPU seconds of so many new tokens, and the tokens."""
    started = time.process_time()
    reader = Reader(model, weights, prompt, N_BYTES, caches)
    found = list(sample(reader, Sampler(Sampling(greedy=True)), prompt, n_new))
    return time.process_time() - started, found


def row(changed: dict[str, object], n_new: int) -> list[str]:
    """Return a model's name, and its seconds without and with a memory."""
    shape = ModelShape(N_BYTES, START + n_new, 4, 4, 128, **changed)
    assert not why_not(shape)
    model = Transformer(shape)
    weights = model.layout.views(3 * model.layout.initial_row(seed=0)[None])
    text = [*torch.arange(START).tolist()]
    prompt = Prompt(text[:1], source=text * 4) if shape.of_family.reads_source else Prompt(text)
    taken: dict[bool, float] = {}
    tokens: dict[bool, list[int]] = {}
    for caches in (True, False):
        taken[caches], tokens[caches] = seconds(model, weights, prompt, n_new, caches)
    if tokens[True] != tokens[False]:
        raise SystemExit(f"{changed}: with a memory other tokens come")
    name = ", ".join(map(str, changed.values()))
    return [
        name,
        str(len(set(tokens[True]))),
        f"{taken[False]:.2f}",
        f"{taken[True]:.2f}",
        f"{taken[False] / taken[True]:.1f}",
    ]


def main() -> None:
    """Print a table with a row a model."""
    torch.set_num_threads(1)
    n_new = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    print(setting())
    print(f"{n_new} new tokens\n")
    headings = ["model", "distinct tokens", "without (s)", "with (s)", "times faster"]
    print_table(headings, [row(changed, n_new) for changed in CASES])


if __name__ == "__main__":
    main()
