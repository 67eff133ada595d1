"""Studies of thousands of entries: each is read, or refused, before it costs much time or memory."""

import resource
import time

import pytest

from sweeplab.errors import BadInput
from sweeplab.study.file.reading import read_study
from sweeplab.sweep.planning import make_plan

HEAD = """\
name: large
data: {corpus: python-docs, tokenizer: char}
fixed: {block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, device: cpu}
"""
SEARCH = (
    "search: {learning_rate: {min: 3e-4, max: 1e-2, log: true}}\nbudget: {trials_per_cell: 2}\n"
)
LARGE = {
    "constraints": SEARCH
    + f"constraints: [{', '.join(f'n_embd < {each}' for each in range(5000))}]\n",
    "constraints that hold": SEARCH
    + f"constraints: [{', '.join(f'n_params < {10**9 + i}' for i in range(100))}]\n",
    "cells": SEARCH
    + f"cells: [{', '.join(f'{{n_embd: {8 * each}}}' for each in range(1, 5001))}]\n",
    "seeds": SEARCH + f"seeds: {[*range(5000)]}\n",
    "grid": SEARCH + f"grid: {{n_embd: {[*range(8, 24008, 8)]}}}\n",
    "choices": SEARCH.replace("search: {", f"search: {{warmup_iters: {[*range(5000)]}, "),
    "nested": SEARCH + f"constraints: ['{'(' * 3000}n_embd{')' * 3000} > 1']\n",
    "long": SEARCH + f"constraints: ['{' + '.join(['n_embd'] * 20000)} > 1']\n",
}
REFUSED = {
    "constraints": "constraints has 5,000 entries; allowed: at most 100",
    "cells": "cells has 5,000 entries; allowed: at most 1,000",
    "grid": "the grid has 3,000 cells; allowed: at most 1,000",
    "nested": "an expression of 6,010 characters is too long",
    "long": "an expression of 180,001 characters is too long",
}


def cost_of(text, folder):
    """Read a study and plan it; return what is said, the seconds of CPU, and the MB by which the peak has grown."""
    file, said = folder / "study.yaml", ""
    file.write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    try:
        make_plan(read_study(file), folder / "lab")
    except BadInput as refused:
        said = str(refused)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return said, time.process_time() - started, grown / 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_study_is_read_or_refused_soon(name, tmp_path):
    said, seconds, megabytes = cost_of(HEAD + LARGE[name], tmp_path)
    assert REFUSED[name] in said if name in REFUSED else not said
    assert seconds < 60
    assert megabytes < 500
