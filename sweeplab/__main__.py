"""Where `sweeplab` and `python -m sweeplab` start."""

from __future__ import annotations

import sys


def start() -> None:
    """Import the command line and run it; Ctrl-C is quiet while the commands are being imported."""
    try:
        from sweeplab.cli import main
    except KeyboardInterrupt:
        from sweeplab.errors import EXIT_INTERRUPTED

        sys.exit(EXIT_INTERRUPTED)
    main()


if __name__ == "__main__":
    start()
