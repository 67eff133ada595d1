"""The storage of trials keeps Optuna's own contract, and reads what Optuna's storage writes beside it."""

import shutil

import pytest
from optuna.study import StudyDirection
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
    # No process deletes a study that it has opened, or passes its storage on.
    test_delete_study = test_pickle_storage = None

    @pytest.fixture(params=[TrialStorage, PublicStorage], ids=["tables", "public"])
    def storage(self, request, tmp_path, empty_database):
        return request.param(f"sqlite:///{shutil.copy(empty_database, tmp_path / 'trials.db')}")

    def test_what_was_read_may_be_changed_and_what_was_set_is_read(self, storage):
        studies = [storage.create_new_study([StudyDirection.MINIMIZE]) for _ in range(2)]
        trial_id = storage.create_new_trial(studies[0])
        storage.get_trial(trial_id).user_attrs["read"] = True
        assert storage.get_trial(trial_id).user_attrs == {}
        with storage.transaction():
            for each in studies:
                storage.set_study_system_attr(each, str(each), each)
            assert [storage.get_study_system_attrs(each) for each in studies] == [
                {str(each): each} for each in studies
            ]
