"""The storage of trials keeps Optuna's own contract, and reads what Optuna's storage writes beside it."""

import math
import shutil

import pytest
from optuna.distributions import FloatDistribution
from optuna.study import StudyDirection
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState, create_trial

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
        with pytest.raises(KeyError), storage.transaction():
            storage.create_new_trial(studies[0])
            raise KeyError
        assert storage.get_n_trials(studies[0]) == (
            2 if isinstance(storage, PublicStorage) else 1
        )
        with storage.transaction():
            for each in studies:
                storage.set_study_system_attr(each, str(each), each)
            assert [storage.get_study_system_attrs(each) for each in studies] == [
                {str(each): each} for each in studies
            ]

    def test_a_waiting_trial_is_started_once(self, storage):
        study_id = storage.create_new_study([StudyDirection.MINIMIZE])
        trial_id = storage.create_new_trial(study_id, create_trial(state=TrialState.WAITING))
        assert storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        assert not storage.set_trial_state_values(trial_id, TrialState.RUNNING)

    def test_another_process_reads_what_was_written(self, storage):
        study_id = storage.create_new_study([StudyDirection.MINIMIZE] * 2)
        trial_id, known = storage.create_new_trial(study_id), {"x": FloatDistribution(0.0, 1.0)}
        ended = {
            "values": [1.0, math.inf],
            "intermediate_values": {1: 2.0, 3: -math.inf},
            "user_attrs": {"u": 1},
        }
        template = create_trial(
            params={"x": 0.5}, distributions=known, system_attrs={"s": [2]}, **ended
        )
        storage.create_new_trial(study_id, template)
        other = type(storage)(str(storage.engine.url))
        assert other.get_all_trials(study_id) == storage.get_all_trials(study_id)
        storage.set_trial_param(trial_id, "x", 0.25, known["x"])
        storage.set_trial_intermediate_value(trial_id, 7, 1.5)
        storage.set_trial_user_attr(trial_id, "u", "mine")
        storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [2.0, 3.0])
        assert other.get_all_trials(study_id) == storage.get_all_trials(study_id)
        storage.get_all_trials(study_id)[0].params["x"] = 0.75
        assert storage.get_all_trials(study_id)[0].params["x"] == 0.25, "a caller has copies"
        other.engine.dispose()
