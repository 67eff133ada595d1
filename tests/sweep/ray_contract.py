"""What every engine promises, of actors on whatever cluster the tests of a file have, and a PostgreSQL server."""

from __future__ import annotations

import pytest
from sweep.engine_contract import EngineContract

from sweeplab.study.spec import Engine


class RayContract(EngineContract):
    @pytest.fixture
    def storage(self, running, monkeypatch) -> None:
        monkeypatch.setenv("SWEEPLAB_STORAGE", running.url)

    @pytest.fixture
    def make_engine(self, cluster):
        from sweeplab.sweep.engines.ray import RayEngine

        spec = Engine(type="ray", address=cluster.address)
        return lambda folder, resources: RayEngine(folder, spec, resources)
