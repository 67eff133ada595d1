"""Print the forms of a learning rate that sweeplab/README.md lists, and the stops of a study file that is read.

Run: python tests/benchmarks/walk.py. A study with a known rate is read, planned, trained and drawn. Of every function
in the list the first call counts whose arguments or result hold the rate; a row without a number was not called with
it. Before, studies/small.yaml is read: a stop is a file with the functions that are called there for the first time
with the path, the text, the document or the study as a whole, before another file has its turn.
"""

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, which has a laws.py

import pandas as pd
from benchmarks.setting import STUDIES, print_table, setting

import sweeplab
from sweeplab.api import write_report
from sweeplab.lab.storage import choose_storage
from sweeplab.lab.studies import write_study
from sweeplab.records.folders import StudyFolder
from sweeplab.study.file.reading import read_study
from sweeplab.study.spec import StudySpec
from sweeplab.sweep.loop import Loop
from sweeplab.sweep.planning import make_plan
from sweeplab.sweep.trials.store import Store

PACKAGE, RATE = Path(sweeplab.__file__).parent, 0.0125
ROW = re.compile(r"\| (\d+) \| .+? \| `(\S+)`, `(\S+)`")
STUDY = f"""
name: walk
data: {{corpus: python-docs, tokenizer: char}}
fixed: {{block_size: 16, batch_size: 4, max_iters: 20, n_layer: 1, n_head: 2, n_embd: 8, device: cpu, optimizer: muon,
        lr_schedule: constant, warmup_iters: 0}}
search: {{learning_rate: [{RATE}, {RATE}1]}}
budget: {{trials_per_cell: 2}}
"""


def reading(file):
    """Return the stops of a study file that is read: files of the package, and the functions called there."""
    text, name, found, seen = file.read_text(), read_study(file).name, [], set()

    def is_whole(value):
        if isinstance(value, Mapping):
            return value.get("name") == name
        return isinstance(value, StudySpec) or value in (file, text)

    def watch(frame, event, _):
        code, place = frame.f_code, Path(frame.f_code.co_filename)
        if event != "call" or not place.is_relative_to(PACKAGE) or code in seen:
            return
        arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
        # A study that says something of itself is no stop.
        is_asked = isinstance(frame.f_locals.get("self"), StudySpec)
        if is_asked or not any(map(is_whole, arguments)):
            return
        seen.add(code)
        stop = str(place.relative_to(PACKAGE))
        if not found or found[-1][0] != stop:
            found.append([stop, ""])
        found[-1][1] = f"{found[-1][1]} {code.co_qualname}".strip()

    sys.setprofile(watch)
    read_study(file)
    sys.setprofile(None)
    return [[str(number), *stop] for number, stop in enumerate(found, 1)]


def walk(folder):
    """Return the rows of the list, each with the number of its first call and what the function returned."""
    rows = ROW.findall((PACKAGE / "README.md").read_text())
    calls = {(file, function): ("", "") for _, file, function in rows}

    def watch(frame, event, returned):
        file = Path(frame.f_code.co_filename)
        if event != "return" or not file.is_relative_to(PACKAGE):
            return
        place = str(file.relative_to(PACKAGE)), frame.f_code.co_qualname
        if calls.get(place) != ("", ""):
            return
        sys.setprofile(None)
        if str(RATE) in repr((returned, frame.f_locals)):
            number = 1 + sum(any(call) for call in calls.values())
            calls[place] = (str(number), type(returned).__name__)
        sys.setprofile(watch)

    (folder / "walk.yaml").write_text(STUDY)
    lab, study = folder / "lab", StudyFolder(folder / "lab", "walk")
    sys.setprofile(watch)
    spec = read_study(folder / "walk.yaml")
    plan, _, dataset = make_plan(spec, lab)
    study.path.mkdir(parents=True)
    choose_storage(study, is_shared=False)
    study.plan_file.write_text(json.dumps(plan.as_dict()))
    store = Store.create(spec, dataset.sizes, study.storage_url)
    write_study(spec, study, plan.data)
    Loop(store, dataset, study).run()
    write_report("sweep", lab, ["walk"])
    sys.setprofile(None)
    return [[*row, *calls[row[1:]]] for row in rows]


if __name__ == "__main__":
    print(setting())
    pd.set_option("display.max_columns", None, "display.width", None)
    print_table(["stop", "file", "functions"], reading(STUDIES / "small.yaml"))
    with tempfile.TemporaryDirectory() as place:
        print_table(["form", "file", "function", "call", "returns"], walk(Path(place)))
