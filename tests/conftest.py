"""What every test has: a cache and permissions of its own, one thread, and no telemetry."""

import gc
import os
from collections import Counter

import pytest
from hypothesis import settings

# Read when MLflow is imported, which test modules may do while they are collected.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Read when NumPy and torch are imported. The suite has a process a core: threads of theirs would wait for each
# other, and burn seven times the time of a test of small products while they do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As workers have it: without it MKL's products depend on where in memory a run's weights lie.
os.environ.setdefault("MKL_CBWR", "AUTO")
# Else each process that a test starts compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A slow machine is no error: only an example that fails is. CI draws four times as many, by --hypothesis-profile=whole.
settings.register_profile("suite", deadline=None, max_examples=25)
settings.register_profile("whole", deadline=None)
settings.load_profile("suite")
LONG = ("slow", "postgres", "browser", "faults", "slurm", "ray")
# What is imported while tests are collected stays: looking for garbage in it took a tenth of the suite's time.
gc.disable()


@pytest.hookimpl(trylast=True)  # of the tests that are left
def pytest_collection_modifyitems(items):
    """Let files with long tests come first: one that begins last keeps all processes but one waiting."""
    ranks = {}
    for item in items:
        marks = [mark.name for mark in item.iter_markers()]
        item.user_properties.append(("marks", marks))
        rank = max((LONG.index(mark) for mark in marks if mark in LONG), default=-1)
        ranks[item.path] = max(ranks.get(item.path, -1), rank)
    items.sort(key=lambda item: ranks[item.path], reverse=True)


def pytest_addoption(parser):
    parser.addoption(
        "--required",
        default="",
        help="fail if no test of one of these marks, with commas, passed",
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail where no test of a required mark has run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    required = list(filter(None, session.config.getoption("required").split(",")))
    if reporter is None or not required or hasattr(session.config, "workerinput"):
        return
    counts = Counter(
        (outcome, mark)
        for outcome in ("passed", "skipped")
        for report in reporter.stats.get(outcome, ())
        for mark in dict(getattr(report, "user_properties", ())).get("marks", ())
    )
    for mark in required:
        if not counts["passed", mark]:
            skipped = counts["skipped", mark]
            reporter.write_line(
                f"required: no test marked {mark} passed, {skipped} were skipped", red=True
            )
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _migrations_read_once():
    """Read the revisions of Optuna's tables once a process: Optuna does so three times for every new storage."""
    from optuna.storages._rdb.storage import _VersionManager

    read = {}
    create = _VersionManager._create_alembic_script

    def create_once(manager):
        return read.get("script") or read.setdefault("script", create(manager))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "_create_alembic_script", create_once)
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """Return a folder that all processes of the suite share, for what takes long to make."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _own_cache(shared_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPLAB_CACHE", str(shared_folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(shared_folder / "state"))
        yield


@pytest.fixture
def workers_here():
    """Let the test's studies have their workers in threads of this process."""
    from workers_here import workers_here

    with workers_here():
        yield


@pytest.fixture(scope="session")
def tinyshakespeare():
    """Return the path of tinyshakespeare.txt; skip the test where it is not said."""
    path = os.environ.get("SWEEPLAB_TINYSHAKESPEARE")
    if not path:
        pytest.skip("SWEEPLAB_TINYSHAKESPEARE names no file")
    return path


@pytest.fixture
def forgets_plugins(tmp_path_factory, monkeypatch):
    """Forget the parts that a test's plugins add, and that they were allowed.

    Tests of every part of a kind would take them for sweeplab's.
    """
    from plugged import forgotten

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    with forgotten():
        yield


@pytest.fixture
def one_thread():
    """Let torch compute on one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
