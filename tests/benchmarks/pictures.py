"""Make the pictures of the README: the scaling report, and the study's charts in MLflow, as Chromium shows them.

Run: python tests/benchmarks/pictures.py LAB NAME, on a lab where the study has been run. Writes dashboards/scaling.png
and dashboards/mlflow.png.
"""

import json
import signal
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from chromium import chromium_page
from terminal import PROGRAM

FOLDER = HERE.parents[1] / "dashboards"
WIDTH, HEIGHT = 1500, 1150
DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].filter((plot) => plot.data?.length).length >= {}"


@contextmanager
def mlflow_pages(lab: str, name: str) -> Iterator[str]:
    """Serve the study's pages as `sweeplab ui` does, and yield the address of its charts."""
    command = [*PROGRAM, "ui", name, "--lab", lab, "--json", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            text = ""
            while not text.endswith("}\n") or text.count("{") != text.count("}"):
                text += process.stdout.readline()
            yield json.loads(text)["studies"][name]["charts"]
        finally:
            process.send_signal(signal.SIGINT)


def take(address: str, n_plots: int, target: Path, width: int = WIDTH, height: int = HEIGHT) -> None:
    """Write what a window shows of an address from the left, once so many plots are drawn."""
    with tempfile.TemporaryDirectory() as profile, chromium_page(Path(profile), WIDTH, height) as page:
        page.open(address)
        page.wait_for(DRAWN.format(n_plots))
        page._listen(2.0)
        clip = {"x": 0, "y": 0, "width": width, "height": height - 150, "scale": 1}
        target.write_bytes(b64decode(page._call("Page.captureScreenshot", format="png", clip=clip)["data"]))


if __name__ == "__main__":
    lab, name = sys.argv[1:]
    report = Path(lab).absolute() / "studies" / name / "report" / "scaling.html"
    take(report.as_uri(), 1, FOLDER / "scaling.png", height=1480)  # to the end of the first figure
    with mlflow_pages(lab, name) as address:
        take(address, 2, FOLDER / "mlflow.png", width=1110)  # without MLflow's own assistant
