"""Text out of a trained model: sampled, searched for by beams, contrasted with another model, or filled in.

Everything asks a `Next` what comes next: a `Reader` of one model, or a `Contrast` of two.
"""

from sweeplab.model.generation.beams import Beam as Beam
from sweeplab.model.generation.beams import beam_search as beam_search
from sweeplab.model.generation.contrast import Contrast as Contrast
from sweeplab.model.generation.filling import fill as fill
from sweeplab.model.generation.filling import hole_scores as hole_scores
from sweeplab.model.generation.reader import Next as Next
from sweeplab.model.generation.reader import Reader as Reader
from sweeplab.model.generation.sampling import Sampler as Sampler
from sweeplab.model.generation.sampling import Sampling as Sampling
from sweeplab.model.generation.sampling import sample as sample
