"""`sweeplab report`: a page of a study that has been run, and what is refused."""

import json
import re
from pathlib import Path

import pytest


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_two_studies_are_compared(cli, finished, lab: Path) -> None:
    ran = cli("study", "run", finished.file, "--lab", lab, "--name", "longer", "-o", "max_iters=40", "--json")
    assert ran.code == 0, ran.err
    said = cli("diff", "tiny", "longer", "--page", "--lab", lab)
    assert (said.code, said.err) == (0, "")
    page = Path(said.out.strip())
    assert page == lab / "reports" / "tiny+longer" / "compare.html"
    report = json.loads(page.with_suffix(".json").read_text())
    assert "max_iters 20 / 40" in report["entries"]["Set differently"]
    assert report["answers"][0].startswith("The best trial of longer has ")
    assert any("longer against tiny: " in answer for answer in report["answers"])
    trials = json.loads(re.search(r'<script[^>]*id="trials"[^>]*>(.*?)</script>', page.read_text(), re.S)[1])
    assert {each["study"] for each in trials} == {"tiny", "longer"}


@pytest.mark.browser
@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
def test_each_figure_is_a_picture_where_that_is_asked_for(cli, finished, form: str, begins: bytes) -> None:
    pytest.importorskip("kaleido", reason="kaleido, of the extra images, is not installed")
    said = cli("report", "tiny", "--page", "sweep", "--lab", finished.lab, "--format", form)
    assert (said.code, said.err) == (0, "")
    pictures = [Path(line) for line in said.out.splitlines()]
    assert len(pictures) > 3 and all(each.suffix == f".{form}" for each in pictures)
    for each in pictures:
        assert each.read_bytes().startswith(begins) and each.stat().st_size > 5000, each.name
