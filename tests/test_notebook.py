"""The example notebook, run in a Jupyter kernel of its own; and what it shows while a study runs."""

import json
from pathlib import Path

import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="nbformat, of the extra notebooks, is not installed"
)
client = pytest.importorskip(
    "nbclient", reason="nbclient, of the extra notebooks, is not installed"
)

STUDIES = Path(__file__).parents[1] / "studies"


def text_of(cell):
    """Return all that a cell's outputs show, as HTML where there is some."""
    data = [each.get("data", {"text/plain": each.get("text", "")}) for each in cell.outputs]
    return "\n".join(each.get("text/html", each.get("text/plain", "")) for each in data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPLAB_LAB", str(tmp_path / "lab"))
    monkeypatch.setenv("PYTHONPATH", str(STUDIES.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    notebook = nbformat.read(STUDIES / "notebook.ipynb", as_version=4)
    resources = {"metadata": {"path": STUDIES}}
    client.NotebookClient(
        notebook, timeout=250, kernel_name="python3", resources=resources
    ).execute()
    _, planned, _, ran, _, varied, curves, _, used, _, asked, again = notebook.cells
    assert "<plan of notebook: 4 cells, " in text_of(planned)
    shown = text_of(ran)
    assert "8/8" in shown and "<script" not in shown
    assert "best  " in shown, "and after it the result"
    assert "learning_rate" in text_of(
        varied
    ) and "application/vnd.plotly.v1+json" in json.dumps(curves.outputs)
    assert "torch.Size([4, 103])" in text_of(used) and "The " in text_of(used)
    assert "trials_per_cell 3 (was 2)" in text_of(asked)
    assert "12/12" in text_of(again), "and the study goes on to its new budget"
