"""Attention on a person's own matrices: against torch's kernel, against numbers by hand, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sweeplab.errors import BadInput
from sweeplab.runs.inspecting import attention_of, read_matrices


@pytest.mark.parametrize("causal", [False, True])
def test_is_what_torchs_kernel_computes(causal: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, width, generator=drawn, dtype=torch.float64) for width in (3, 3, 4))
    found = attention_of({"queries": q.tolist(), "keys": k.tolist(), "values": v.tolist()}, causal)
    wanted = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
    torch.testing.assert_close(torch.tensor(found["output"], dtype=torch.float64), wanted)


def test_every_step_of_a_textbooks_example_by_hand() -> None:
    given = read_matrices("{x: [[1, 0], [0, 1]], w_q: [[1], [2]], w_k: [[3], [1]], v: [[10, 0], [0, 10]]}")
    found = attention_of(given, scale=0.5)
    assert found["queries"] == [[1.0], [2.0]] and found["keys"] == [[3.0], [1.0]]
    assert found["products"] == [[3.0, 1.0], [6.0, 2.0]]
    assert found["scores"] == [[1.5, 0.5], [3.0, 1.0]]
    first = math.e / (1.0 + math.e)
    assert found["weights"][0] == pytest.approx([first, 1.0 - first])
    assert found["output"][0] == pytest.approx([10.0 * first, 10.0 - 10.0 * first])


def test_a_table_of_inputs_is_read_of_a_csv(tmp_path: Path, cli: Callable) -> None:
    (tmp_path / "inputs.csv").write_text("1,0\n0,1\n1,1\n")
    words = ("model", "attention", "--matrices", str(tmp_path / "inputs.csv"), "--causal")
    found = json.loads(cli(*words, "--json").out)
    assert found["scores"][0] == [pytest.approx(1.0 / math.sqrt(2.0)), None, None], "-inf is no JSON"
    assert found["weights"][0] == [1.0, 0.0, 0.0]
    printed = cli(*words).out
    assert "q1  0.7071    -inf    -inf" in printed and "q3  0.7517  0.7517" in printed


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{q: [[1]], k: [[1]], valus: [[1]]}", 'there is no matrix "valus"'),
        ("{q: [[1, 2], [3]]}", "all of one length, such as [[1, 0], [0, 1]]"),
        ("{q: [[.nan]]}", "rows of as many numbers"),
        ("{q: [[1]], k: [[1]]}", "there are neither values nor inputs"),
        ("{q: [[1, 0]], k: [[1]], v: [[1]]}", "queries are 1 x 2 and keys 1 x 1"),
        ("{q: [[1]], k: [[1], [2]], v: [[1]]}", "keys are 2 x 1 and values 1 x 1"),
        ("{x: [[1, 2]], w_q: [[1]], k: [[1]], v: [[1]]}", "inputs are 1 x 2 and w_queries 1 x 1"),
        ("no.csv", "no.csv: No such file"),
    ],
)
def test_refuses_in_one_line(written: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        attention_of(read_matrices(written))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1
