"""The storage of trials keeps Optuna's own contract, and reads what Optuna's storage writes beside it."""

import shutil

import pytest
from optuna.testing.pytest_storages import StorageTestCase

from sweeplab.sweep.trials.public import PublicStorage
from sweeplab.sweep.trials.storage import TrialStorage


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """Return a database with Optuna's tables: to make them takes longer than most tests."""
    file = tmp_path_factory.mktemp("storage") / "empty.db"
    TrialStorage(f"sqlite:///{file}").engine.dispose()
    return file


class TestOptunasContract(StorageTestCase):
    @pytest.fixture(params=[TrialStorage, PublicStorage], ids=["tables", "public"])
    def storage(self, request, tmp_path, empty_database):
        return request.param(f"sqlite:///{shutil.copy(empty_database, tmp_path / 'trials.db')}")
