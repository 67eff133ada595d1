"""The folder where downloads and tokens are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$SWEEPLAB_CACHE`, or else sweeplab's folder in the user's own cache."""
    if named := os.environ.get("SWEEPLAB_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sweeplab")
