"""Make the pictures of the README: the scaling report, the live page, the charts in MLflow, as Chromium shows them.

Run: python tests/benchmarks/pictures.py. It runs studies/small.yaml in an empty folder. When half of the trials have
ended it writes live.png into dashboards, and at the end scaling.png and mlflow.png; a picture that cuts an axis fails.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from chromium import chromium_page
from terminal import PROGRAM

FOLDER = HERE.parents[1] / "dashboards"
WIDTH, HEIGHT = 1500, 1150
# The study; as many trials have ended in the picture of the live page.
NAME, N_LIVE = "small", 15
DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].filter((plot) => plot.data?.length).length >= {}"


def n_ended(folder):
    """Return how many of the study's trials have ended."""
    words = [*PROGRAM, "list", "--json"]
    listed = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, check=True).stdout
    return sum(study["done"] for study in json.loads(listed))


@contextmanager
def pages_of(command, folder):
    """Serve the study's pages as a command does, and yield what it says of them."""
    words = [*PROGRAM, command, NAME, "--json", "--no-open"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
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
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium_page(Path(profile), WIDTH, HEIGHT) as page,
    ):
        page.open(address)
        page.wait_for(DRAWN.format(n_plots))
        page._listen(5.0)
        clip = clip_of(page, last, width)
        assert not cut_off(page, last, clip), f"{target.name} cuts axes"
        shot = page._call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        target.write_bytes(b64decode(shot["data"]))


def main(folder):
    """Run the study in a folder, and take the pictures."""
    with subprocess.Popen(
        [*PROGRAM, "run", "studies/small.yaml", "--quiet"], cwd=folder
    ) as running:
        while n_ended(folder) < N_LIVE:
            assert running.poll() is None, "the study ended before a picture was taken"
            time.sleep(2.0)
        with pages_of("dashboard", folder) as said:
            take(said["page"], 2, FOLDER / "live.png", "document.getElementById('progress')")
        assert running.wait() == 0
    report = folder / "lab" / "studies" / NAME / "report" / "scaling.html"
    take(report.as_uri(), 1, FOLDER / "scaling.png", "document.querySelector('.figure')")
    with pages_of("ui", folder) as said:
        charts = said["studies"][NAME]["charts"]
        last = "[...document.querySelectorAll('.js-plotly-plot')].at(-1)"
        # Without MLflow's own assistant.
        take(charts, 2, FOLDER / "mlflow.png", last, width=1110)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
