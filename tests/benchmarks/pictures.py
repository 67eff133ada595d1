"""Make the pictures of the README: the scaling report, the live page, and the charts in MLflow, as Chromium shows them.

Run: python tests/benchmarks/pictures.py LAB NAME, on a lab where the study has been run. Writes scaling.png, live.png
and mlflow.png into dashboards; refuses a picture that cuts an axis.
"""

import json
import signal
import subprocess
import sys
import tempfile
from base64 import b64decode
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
def pages_of(command, lab, name):
    """Serve the study's pages as a command does, and yield what it says of them."""
    words = [*PROGRAM, command, name, "--lab", lab, "--json", "--no-open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            text = ""
            while not text.endswith("}\n") or text.count("{") != text.count("}"):
                text += process.stdout.readline()
            yield json.loads(text)
        finally:
            process.send_signal(signal.SIGINT)


def clip_of(page, last, width=WIDTH):
    """Return the part of a page from its head to the end of an element, with some room below."""
    bottom = page.read(f"{last}.getBoundingClientRect().bottom + scrollY")
    return {"x": 0, "y": 0, "width": width, "height": bottom + 12, "scale": 1}


def cut_off(page, last, clip):
    """Return the titles and ticks of an element's axes that are not whole inside a part of the page."""
    words = page.read(
        f"[...{last}.querySelectorAll('.xtitle, .ytitle, .xtick text, .ytick text, .legendtext')].map((each) => {{"
        "const box = each.getBoundingClientRect();"
        "return [each.textContent, box.left, box.top + scrollY, box.right, box.bottom + scrollY]; })"
    )
    assert words, "no axis is drawn"
    right, bottom = clip["width"], clip["height"]
    return [text for text, *box in words if min(box) < 0 or box[2] > right or box[3] > bottom]


def take(address, n_plots, target, last, width=WIDTH):
    """Write what a window shows of an address, to the end of an element, once so many plots are drawn."""
    with tempfile.TemporaryDirectory() as profile, chromium_page(Path(profile), WIDTH, HEIGHT) as page:
        page.open(address)
        page.wait_for(DRAWN.format(n_plots))
        page._listen(2.0)
        clip = clip_of(page, last, width)
        assert not cut_off(page, last, clip), f"{target.name} cuts axes"
        shot = page._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        target.write_bytes(b64decode(shot["data"]))


if __name__ == "__main__":
    lab, name = sys.argv[1:]
    report = Path(lab).absolute() / "studies" / name / "report" / "scaling.html"
    take(report.as_uri(), 1, FOLDER / "scaling.png", "document.querySelector('.figure')")
    with pages_of("dashboard", lab, name) as said:
        take(said["page"], 2, FOLDER / "live.png", "document.getElementById('progress')")
    with pages_of("ui", lab, name) as said:
        charts, last = (
            said["studies"][name]["charts"],
            "[...document.querySelectorAll('.js-plotly-plot')].at(-1)",
        )
        take(charts, 2, FOLDER / "mlflow.png", last, width=1110)  # without MLflow's own assistant
