"""The example notebook, run in a Jupyter kernel of its own; and what it shows while a study runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat, of the extra notebooks, is not installed")
client = pytest.importorskip("nbclient", reason="nbclient, of the extra notebooks, is not installed")

STUDIES = Path(__file__).parents[1] / "studies"


class Watched(client.NotebookClient):
    """Executes a notebook and keeps the HTML of every display that is drawn again."""

    drawn: list[str]

    def process_message(self, message: dict[str, Any], cell: Any, index: int) -> Any:
        if message["msg_type"] == "update_display_data":
            self.drawn.append(message["content"]["data"]["text/html"])
        return super().process_message(message, cell, index)


def text_of(cell: Any) -> str:
    """Return all that a cell's outputs show, as HTML where there is some."""
    data = [each.get("data", {"text/plain": each.get("text", "")}) for each in cell.outputs]
    return "\n".join(each.get("text/html", each.get("text/plain", "")) for each in data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_example_runs_and_shows_a_bar_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEPLAB_LAB", str(tmp_path / "lab"))
    monkeypatch.setenv("PYTHONPATH", str(STUDIES.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(STUDIES / "notebook.ipynb", as_version=4)
    watched = Watched(notebook, timeout=250, kernel_name="python3", resources={"metadata": {"path": STUDIES}})
    watched.drawn = []
    watched.execute()
    _, planned, _, ran, _, varied, curves, _, used, _, asked, again = notebook.cells
    assert "<plan of notebook: 4 cells, " in text_of(planned)
    counts = [
        int(found[1]) for html in watched.drawn if (found := re.search("progress value='(\\d+)'", html))
    ]
    assert counts == sorted(counts) and {0, 8} <= {*counts}, "the bar moves to its end"
    assert any(re.search(r"<td>#\d \d+ \d\.\d{3}", html) for html in watched.drawn), (
        "running trials are in the table"
    )
    shown = text_of(ran)
    assert "<progress value='8' max='8'>" in shown and "<td>2/2</td>" in shown and "<script" not in shown
    assert "best: " in shown, "and after it the result"
    assert "learning_rate" in text_of(varied) and "application/vnd.plotly.v1+json" in json.dumps(
        curves.outputs
    )
    assert "torch.Size([4, 103])" in text_of(used) and "The " in text_of(used)
    assert "trials_per_cell 3 (was 2)" in text_of(asked)
    assert "<td>3/3</td>" in text_of(again), "and the study goes on to its new budget"
