"""How every `laws` command counts, on a study that was really trained."""

import pandas as pd
import pytest

from sweeplab.analysis.studies import Studies, read_studies
from sweeplab.errors import BadInput
from sweeplab.laws.columns import Conventions

LOSSES = ("best_val_loss", "best_bits_per_byte", "best_whole_val_loss", "best_whole_bits_per_byte")


def two(finished, data: dict[str, str] | None = None, at: str = "best") -> Studies:
    """Return the study twice: as it is, and as another with these digests and objective."""
    one = read_studies(finished.lab, ["tiny"])
    spec = one.specs["tiny"]
    other = spec.model_copy(
        update={"name": "other", "objective": spec.objective.model_copy(update={"at": at})}
    )
    runs = pd.concat(
        [one.runs, one.runs.assign(study="other", **{name: 1.1 * one.runs[name] for name in LOSSES})]
    )
    return Studies(
        runs.reset_index(drop=True),
        {"tiny": spec, "other": other},
        {"tiny": one.data["tiny"], "other": one.data["tiny"] | (data or {})},
    )


@pytest.mark.parametrize(
    ("data", "loss", "said"),
    [
        ({"text_digest": "0", "token_digest": "0"}, "", "tiny and other were trained on different text: losses"),
        ({"text_digest": "0", "token_digest": "0"}, "bits-per-byte", "on different text"),
        ({"token_digest": "0"}, "", "different tokens: losses in nats/token cannot be compared; of one text, --count"),
    ],
)  # fmt: skip
def test_studies_whose_losses_cannot_be_compared(
    data: dict[str, str], loss: str, said: str, finished
) -> None:
    with pytest.raises(BadInput, match=said):
        two(finished, data).points(None, Conventions(loss=loss))


def test_studies_that_are_valued_differently(finished) -> None:
    studies = two(finished, at="final")
    with pytest.raises(
        BadInput, match="value a run by different evaluations; allowed: --count at=best or at=final"
    ):
        studies.points()
    with pytest.raises(
        BadInput, match=r"differently: tiny by val_loss \(best\), other by val_loss \(final\)"
    ):
        studies.check_comparable()
    final = studies.points(None, Conventions(at="final"))
    assert (final.n, final.dropped["duplicate"]) == (2, 2), (
        "the last losses were not changed: the same runs twice"
    )
    with pytest.raises(BadInput, match="'tiny' is named twice"):
        read_studies(finished.lab, ["tiny", "tiny"])
