"""`sweeplab report`: a page of a study that has been run, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from cli.conftest import carried_out


@pytest.mark.usefixtures("workers_here")
@pytest.mark.slow
def test_two_studies_are_compared(cli, finished, lab):
    ran = cli(
        "study",
        "run",
        finished.file,
        "--lab",
        lab,
        "--name",
        "longer",
        "-o",
        "max_iters=40",
        "--json",
    )
    assert ran.code == 0, ran.err
    said = cli("diff", "tiny", "longer", "--page", "--lab", lab)
    assert (said.code, said.err) == (0, "")
    page = Path(said.out.strip())
    assert page == lab / "reports" / "tiny+longer" / "compare.html"
    report = json.loads(page.with_suffix(".json").read_text())
    assert report["answers"][0].startswith("longer against tiny: ")
    trials = json.loads(
        re.search(r'<script[^>]*id="trials"[^>]*>(.*?)</script>', page.read_text(), re.S)[1]
    )
    assert {each["study"] for each in trials} == {"tiny", "longer"}


def test_a_page_that_would_be_the_same_is_not_written_again(lab):
    written = []
    for seed in range(3):  # that of Python's hashes, and so the order of sets
        carried_out(["report tiny"], lab.parent, PYTHONHASHSEED=str(seed))
        written.append((lab / "studies/tiny/report/scaling.html").stat().st_mtime_ns)
    assert written[0] == written[1] == written[2]
