"""Measure how the cost of each kind of attention grows with the length: closed-form FLOPs, CPU seconds of both passes.

Run: python tests/benchmarks/attention.py [longest]. Each cell is the median of five, on one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.setting import print_table, setting

from sweeplab.model.attention import ATTENTION, AttentionMask
from sweeplab.model.shape import ModelShape

HEADS, WIDTH, SHORTEST = 4, 32, 256


def seconds(kind: str, shape: ModelShape, length: int) -> float:
    """Return the CPU seconds of one layer's attention over a sequence, forward and backward."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    taken = []
    for _ in range(5):
        started = time.process_time()
        mixed = ATTENTION[kind].attend(q, k, v, shape, AttentionMask(True, 1), None)
        torch.autograd.grad(mixed.sum(), (q, k, v))
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def main() -> None:
    """Print a table with one row a length."""
    torch.set_num_threads(1)
    longest = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    print(setting())
    print(f"{HEADS} heads of {WIDTH}, window 64, stride 16, causal; in brackets times the row before\n")
    rows, before = [], {}
    length = SHORTEST
    while length <= longest:
        shape = ModelShape(vocab_size=2, block_size=length, n_layer=1, n_head=HEADS, n_embd=HEADS * WIDTH)
        row = [f"{length:,}"]
        for kind, part in ATTENTION.items():
            found = (part.flops(shape, length, length, True) / 1e6, seconds(kind, shape, length) * 1e3)
            grown = [
                f" ({now / then:.1f})" for now, then in zip(found, before.get(kind, ()), strict=False)
            ] or ["", ""]
            row += [f"{found[0]:.1f}{grown[0]}", f"{found[1]:.1f}{grown[1]}"]
            before[kind] = found
        rows.append(row)
        length *= 2
    print_table(["length", *(f"{kind} {unit}" for kind in ATTENTION for unit in ("MFLOP", "ms"))], rows)


if __name__ == "__main__":
    main()
