"""MLflow's server of one lab, as a process of its own that `pages.py` starts: files outside the lab are refused."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve what a line of standard input describes, as `pages.serve` writes it."""
    given: dict[str, Any] = json.loads(sys.stdin.readline())
    import uvicorn
    from mlflow.exceptions import MlflowException
    from mlflow.server import constants
    from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    from sweeplab.tracking.private import Private

    lab = Path(given["lab"]).resolve()

    class LabArtifacts(LocalArtifactRepository):
        """The files of a run, which lie in the lab; MLflow itself follows no link out of their folder."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            if not Path(self.artifact_dir).resolve().is_relative_to(lab):
                raise MlflowException.invalid_parameter_value(
                    f"{self.artifact_dir} leads outside of the lab {lab}"
                )

    known: dict[str, Any] = get_registered_artifact_repositories()
    for scheme in known.keys() - {"runs", "models"}:  # these lead to one of the others
        del known[scheme]
    known |= {"": LabArtifacts, "file": LabArtifacts}
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = given["uri"]
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = given["artifacts"]
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(given["uri"], given["uri"], given["artifacts"])
    config = uvicorn.Config(Private(app, given["address"]), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=given["descriptor"])])


if __name__ == "__main__":
    main()
