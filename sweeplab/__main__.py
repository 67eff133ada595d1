"""The entry point of `sweeplab` and `python -m sweeplab`."""

from __future__ import annotations

import atexit
import gc
import sys

# Imported modules are never garbage: looking through them after every 700 objects takes a tenth of a command's time.
COLLECT_AFTER = 50_000


def start() -> None:
    """Import the command line and run it; Ctrl-C during the import prints no traceback."""
    gc.set_threshold(COLLECT_AFTER)
    # Nor at the end, when Python would look through them again, for half a second.
    atexit.register(gc.freeze)
    try:
        from sweeplab.cli import main
    except KeyboardInterrupt:
        from sweeplab.errors import EXIT_INTERRUPTED

        sys.exit(EXIT_INTERRUPTED)
    main()


if __name__ == "__main__":
    start()
