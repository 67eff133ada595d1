"""Where `sweeplab` and `python -m sweeplab` start."""

from __future__ import annotations

import gc
import sys

# What a command imports stays: looking through it for garbage after every 700 objects takes a tenth of its time.
COLLECT_AFTER = 50_000


def start() -> None:
    """Import the command line and run it; Ctrl-C is quiet while the commands are being imported."""
    gc.set_threshold(COLLECT_AFTER)
    try:
        from sweeplab.cli import main
    except KeyboardInterrupt:
        from sweeplab.errors import EXIT_INTERRUPTED

        sys.exit(EXIT_INTERRUPTED)
    main()


if __name__ == "__main__":
    start()
