"""The plug-ins of studies/plugins, imported into this process and forgotten again."""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import sweeplab
from sweeplab import hyperparameters, plugins
from sweeplab.hyperparameters import TABLE

FOLDER = Path(sweeplab.__file__).parents[1] / "studies" / "plugins"


@contextmanager
def forgotten():
    """Forget, at the end, the parts that plug-ins have added."""
    before, rows = len(plugins.added), dict(TABLE)
    try:
        yield
    finally:
        for kind, name, _ in plugins.added[before:]:
            if kind != "hyperparameter":
                plugins.table_of(kind).pop(name, None)
            elif hyperparameters._DEFAULTS.pop(name, None) is not None:
                delattr(hyperparameters.Hyperparameters, name)
        del plugins.added[before:]
        TABLE.clear()
        TABLE.update(rows)


@contextmanager
def imported():
    """Import them all; yield the modules by name."""
    modules = {}
    with forgotten():
        for file in sorted(FOLDER.glob("*.py")):
            spec = importlib.util.spec_from_file_location(f"plugged_{file.stem}", file)
            modules[file.stem] = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = modules[file.stem]  # dataclasses and inspect look there
            spec.loader.exec_module(modules[file.stem])
        yield modules


def questions():
    """Draw contexts of a name in capitals, a year and other words; questions are `who?` and `when?`."""
    drawn, rows = np.random.default_rng(0), []

    def word(letters):
        return "".join(drawn.choice(list(letters), 1 + drawn.integers(4)))

    for _ in range(800):
        who, when = word("ABC"), word("0123")
        context = " ".join(drawn.permutation([who, when, word("abc"), word("abc")]))
        question, answer = (("who?", who), ("when?", when))[drawn.integers(2)]
        start = context.index(answer)
        rows.append(
            {"question": question, "context": context, "answer": answer, "answer_start": start}
        )
    return rows
