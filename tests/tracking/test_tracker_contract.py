"""What every tracker keeps to. A tracker's tests inherit the contract and say how to make one."""

import pytest
from tracked import Tracked

from sweeplab.hyperparameters import Hyperparameters
from sweeplab.permissions import name_address
from sweeplab.tracking import open_tracker


class TrackerContract:
    @pytest.fixture
    def make(self):
        """Return a function that makes a new tracker of the same study, as another process would."""
        raise pytest.UsageError("a tracker's tests say how to make one")

    @pytest.fixture
    def seen(self, tracker):
        """Return what MLflow has of the study."""
        raise pytest.UsageError("a tracker's tests say where to look")

    @pytest.fixture
    def tracker(self, make):
        tracker = make()
        tracker.open({})
        return tracker

    def test_opens_the_same_study_again(self, make, seen):
        assert make().open({}) == make().open({})
        assert seen.runs() == []

    def test_prints_nothing(self, tracker, run_folder, capfd):
        tracker.ship(run_folder("n_layer=1/0/0", "complete"))
        assert capfd.readouterr().out == ""

    def test_ships_a_run_with_all_its_numbers(self, tracker, seen, run_folder, writer):
        tracker.ship(run_folder("n_layer=1,n_embd=32/7/3", "complete"))
        (run,) = seen.runs()
        assert (run.cell, run.trial, run.seed, run.state) == (
            "n_layer=1,n_embd=32",
            7,
            3,
            "complete",
        )
        assert (
            set(run.values)
            == set(Hyperparameters.of(writer.values).applicable())
            < set(writer.values)
        )
        assert (run.values["betas"], run.values["dropout"]) == ("(0.9, 0.95)", "0.2")
        expected = {
            "n_params": 1234,
            "train_flops": 1e9,
            "wall_seconds": 15.0,
            "best_val_loss": 3.8,
        }
        assert expected.items() <= run.metrics.items()
        steps = {"val_loss": [0, 10, 20, 30], "val_loss_by_tokens": [0, 640, 1280, 1920]}
        trained = ("train_loss", "lr", "grad_norm", "tokens_per_second")
        steps |= {name: [10, 20, 30] for name in trained}
        for name, expected_steps in steps.items():
            points = seen.points(run.run_id, name)
            assert [each.step for each in points] == expected_steps
        assert [each.value for each in seen.points(run.run_id, "val_loss")] == [
            4.0,
            3.875,
            3.75,
            3.625,
        ]
        times = [each.timestamp for each in seen.points(run.run_id, "val_loss_by_tokens")]
        assert times == [1_700_000_000_250 + 5000 * each for each in range(4)]

    @pytest.mark.parametrize(
        "again", ["same process", "new process", "new process, marker lost"]
    )
    @pytest.mark.parametrize("state", ["", "pruned"])
    def test_shipping_twice_changes_nothing(
        self,
        state,
        again,
        make,
        seen,
        run_folder,
    ):
        first = make()
        first.open({})
        folder = run_folder(state=state)
        first.ship(folder)
        (before,) = seen.runs()
        curve = seen.points(before.run_id, "val_loss_by_tokens")
        second = first if again == "same process" else make()
        if second is not first:
            second.open({})
        if "lost" in again:
            (folder / "shipped").unlink(missing_ok=True)
        second.ship(folder)
        second.ship(folder)
        (after,) = seen.runs()
        assert (after.run_id, after.metrics, after.values) == (
            before.run_id,
            before.metrics,
            before.values,
        )
        again_read = seen.points(after.run_id, "val_loss_by_tokens")
        assert [dict(point) for point in again_read] == [dict(point) for point in curve]
        assert len(curve) == (4 if state else 3)

    def test_ships_what_is_new_as_the_run_goes_on(self, tracker, seen, run_folder, writer):
        folder = run_folder()
        tracker.ship(folder)
        writer.append(folder, writer.lines(30), torn='{"iteration": 40, "val')
        tracker.ship(folder)
        # The writer was killed there; its successor starts from the checkpoint of iteration 10.
        slower = [
            line | {"wall_seconds": line["wall_seconds"] + 100}
            for line in writer.lines(20, 30, 40)
        ]
        writer.append(folder, slower)
        tracker.ship(folder)
        writer.end(folder, iteration=40)
        tracker.ship(folder)
        (run,) = seen.runs()
        curve = seen.points(run.run_id, "train_loss")
        assert [each.step for each in curve] == [10, 20, 30, 40]
        assert [each.timestamp - 1_700_000_000_250 for each in curve] == [
            5_000,
            10_000,
            15_000,
            120_000,
        ]
        assert run.state == "complete"

    def test_ships_no_folder_whose_run_was_not_admitted(self, tracker, seen, tmp_path):
        tracker.ship(tmp_path)
        assert seen.runs() == []

    def test_a_run_waits_and_goes_on(
        self,
        make,
        tracker,
        seen,
        run_folder,
        writer,
    ):
        def states():
            return [run.state for run in seen.runs()]

        folder = run_folder()
        tracker.ship(folder)
        assert states() == ["running"]
        successor = make()
        successor.open({})
        assert states() == ["waiting"]
        writer.append(folder, writer.lines(30))
        successor.ship(folder)
        assert states() == ["running"]
        successor.close({"state": "interrupted"})
        assert states() == ["waiting"]


class TestMLflow(TrackerContract):
    @pytest.fixture
    def make(self, lab, request):
        return lambda: open_tracker(lab, f"it's {request.node.name}", None)

    @pytest.fixture
    def seen(self, tracker, lab, request):
        return Tracked(lab, f"it's {request.node.name}")


@pytest.mark.slow
class TestMLflowServer(TrackerContract):
    @pytest.fixture
    def make(self, server, tmp_path, request):
        name_address(server)
        return lambda: open_tracker(tmp_path / "lab", request.node.name, server)

    @pytest.fixture
    def seen(self, tracker, server, tmp_path, request):
        return Tracked(tmp_path / "lab", request.node.name, server)
