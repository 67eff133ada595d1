"""The checks as one table: one that is added is a row of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeplab.analysis.audit.counting import embeddings_in_n, head_left_out
from sweeplab.analysis.audit.endings import cut_short, seeds
from sweeplab.analysis.audit.evidence import Evidence, Finding
from sweeplab.analysis.audit.schedules import decay, warm_up
from sweeplab.analysis.audit.tuning import TUNED


@dataclass(frozen=True)
class Check:
    """One question to a study, and the function that answers it."""

    name: str
    question: str
    look: Callable[[Evidence], Finding]


CHECKS: tuple[Check, ...] = (
    Check("embeddings", "Are embeddings a large part of N?", embeddings_in_n),
    Check("head", "Does C leave the head's FLOPs out?", head_left_out),
    Check("warm-up", "Is the warm-up too long for the shortest runs?", warm_up),
    Check("decay", "Does the learning rate come down at the run's end?", decay),
    *(Check(name, f"Is {each.name} tuned at each size?", each.is_tuned) for name, each in TUNED.items()),
    *(
        Check(f"{name}-edge", f"Is the best {each.name} inside of its range?", each.is_inside)
        for name, each in TUNED.items()
    ),
    Check(
        "cut-short",
        "Are runs in the fit that stopped early, or left out that were pruned too soon?",
        cut_short,
    ),
    Check("seeds", "Do seeds show the noise?", seeds),
)


@dataclass(frozen=True)
class Audit:
    """What every check said of a study; `law` is the one whose exponents stand in the effects."""

    law: str
    evidence: Evidence
    findings: tuple[tuple[Check, Finding], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        points = self.evidence.points
        return {
            "law": self.law or None,
            "n_points": points.n,
            "conventions": points.conventions,
            "dropped": points.dropped,
            "findings": [
                {"name": check.name, "question": check.question, **finding.as_dict()}
                for check, finding in self.findings
            ],
        }


def audit(evidence: Evidence) -> Audit:
    """Return what every check says."""
    findings = tuple((check, check.look(evidence)) for check in CHECKS)
    return Audit(evidence.law, evidence, findings)
