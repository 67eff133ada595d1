"""Every model in plain NumPy float64, forward and backward by hand: one run, no autograd, written to be read.

Where to begin: `models` puts the families together; `attention`, `feed_forward` and `positions` are their parts;
`functions` has each function beside its derivative. The tests hold the stacked torch models to these numbers.
"""

from references.numpy_model.models import logits, loss, loss_and_gradients, trace

__all__ = ["logits", "loss", "loss_and_gradients", "trace"]
