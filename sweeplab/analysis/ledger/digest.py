"""What a forecast was made from, as digests: of the exact points, of each row, of the study."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeplab.analysis.ledger.chain import canonical
from sweeplab.analysis.points import NUMBERS, Points

if TYPE_CHECKING:
    from sweeplab.study.spec import StudySpec

_MARK_BYTES = 8


def data_digest(points: Points) -> str:
    """Return the sha256 of a table's rows in any order: what every row says, its weight and its group."""
    roles = [role for role in NUMBERS if role in points.columns]
    return hashlib.sha256(canonical(roles) + b"".join(sorted(_rows(points)))).hexdigest()


def row_marks(points: Points) -> list[str]:
    """Return a short digest of each row, in order: to tell later whether a table had that row."""
    return [row[:_MARK_BYTES].hex() for row in _rows(points)]


def study_digest(spec: StudySpec, text_digest: str) -> str:
    """Return the sha256 of what makes a study the one it is: all but where its data lie, and what may change."""
    identity = spec.canonical()["identity"]
    identity["data"] = identity["data"] | {"path": None, "text": text_digest}
    return hashlib.sha256(canonical(identity)).hexdigest()


def code_version() -> dict[str, Any]:
    """Return sweeplab's version and, where it lies in a repository of its own, the commit and whether it is dirty."""
    import sweeplab
    from sweeplab.tracking.environment import git_of_code

    commit = git_of_code() or {"commit": None, "dirty": None}
    return {"sweeplab": sweeplab.__version__, **commit}


def _rows(points: Points) -> list[bytes]:
    roles = [role for role in NUMBERS if role in points.columns]
    table = np.column_stack([*(points.columns[role] for role in roles), points.weights]).astype("<f8")
    groups = points.groups or ("",) * points.n
    return [
        hashlib.sha256(row.tobytes() + group.encode()).digest()
        for row, group in zip(table, groups, strict=True)
    ]
