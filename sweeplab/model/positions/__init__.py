"""Position schemes: one file each, and a row of the table."""

from sweeplab.model.positions.alibi import ALIBI
from sweeplab.model.positions.base import Positions as Positions
from sweeplab.model.positions.learned import LEARNED
from sweeplab.model.positions.relative import RELATIVE
from sweeplab.model.positions.rotary import ROTARY
from sweeplab.model.positions.sinusoidal import SINUSOIDAL

POSITIONS: dict[str, Positions] = {
    "learned": LEARNED,
    "sinusoidal": SINUSOIDAL,
    "relative": RELATIVE,
    "rotary": ROTARY,
    "alibi": ALIBI,
    "none": Positions(),
}
