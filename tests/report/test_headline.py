"""The five lines that come first of a study: one table of states, and what each says and does next."""

from dataclasses import replace
from pathlib import Path

import pytest

from sweeplab.lab.findings import Finding
from sweeplab.lab.listing import StudyState
from sweeplab.report.headline import WIDTH, Ahead, BestTrial, StudyFacts, headline

VALUES = {"n_layer": 2, "n_embd": 66, "learning_rate": 0.0401}
BEST = BestTrial(2, "n_layer=2,n_embd=66", VALUES, "val_loss", 1.3797, 0.0102, Path())
AHEAD = Ahead("params and tokens", 1.259, 1.221, 1.307, 13_824, 106_392)
EDGE = Finding("end of range", ("a", "b", "c"), "learning_rate", "", "", 0.3, "max")
BELOW = Finding("above n-grams", ("all",), "max_iters", "", "", 1.96)
SMALL = StudyFacts(
    "small", StudyState.COMPLETE, 30, 30, runs=57, best=BEST, sizes=10, begun=10, done=10, ahead=AHEAD
)  # fmt: skip
ONE = replace(
    SMALL, name="one", counted=3, total=3, runs=3, sizes=1, begun=1, ahead=None, length={"max_iters": 300},
    best=replace(BEST, loss=3.108, half_width=None, values={"learning_rate": 0.0912}),
)  # fmt: skip
CUT = replace(
    SMALL, name="cut", state=StudyState.STOPPED, counted=9, total=12, runs=9, cut="time budget of 5m", seconds=300.0,
    begun=2, ahead=None
)  # fmt: skip
BANG = replace(ONE, name="bang", state=StudyState.DIVERGED, best=None, lowest_rate=1.2e7)
RUNNING = replace(
    SMALL, state=StudyState.RUNNING, counted=14, training=3, left="4 to 6 min", done=5, ahead=None
)  # fmt: skip

SCREENS = {
    "finished, the best at an edge": (
        replace(SMALL, findings=[EDGE]),
        """
        small  finished: 30 of 30 trials (57 runs)
        best   val_loss 1.380 +-0.010 (seed)   n_layer=2 n_embd=66 learning_rate=0.0401
        law    at 2x params and tokens: 1.26 (1.22 to 1.31); 13,824 to 106,392 fitted
        check  best learning_rate is at the upper end of its range in 3 of 10 sizes
        next   sweeplab extend small --widen learning_rate
        """,
    ),
    "a law that is too wide": (
        SMALL,
        """
        small  finished: 30 of 30 trials (57 runs)
        best   val_loss 1.380 +-0.010 (seed)   n_layer=2 n_embd=66 learning_rate=0.0401
        law    at 2x params and tokens: 1.26 (1.22 to 1.31); 13,824 to 106,392 fitted
        next   sweeplab extend small --next
        """,
    ),
    "a law of the whole validation split, and nothing to change": (
        replace(SMALL, ahead=replace(AHEAD, low=1.24, high=1.28, metric="best_whole_val_loss")),
        """
        small  finished: 30 of 30 trials (57 runs)
        best   val_loss 1.380 +-0.010 (seed)   n_layer=2 n_embd=66 learning_rate=0.0401
        law    at 2x params and tokens: 1.26 (1.24 to 1.28) on the whole split
        next   sweeplab confirm small
        """,
    ),
    "one size, worse than n-grams": (
        replace(ONE, findings=[EDGE, BELOW]),
        """
        one    finished: 3 of 3 trials
        best   val_loss 3.11 (one seed)   learning_rate=0.0912
        law    none: one size; three or more are needed
        check  worse than n-grams (1.96): train longer
        next   sweeplab run one --name one-2 -o max_iters=600
        """,
    ),
    "cut by its time": (
        CUT,
        """
        cut    stopped at its time budget of 5m: 9 of 12 trials, 3 unfinished
        best   so far val_loss 1.380 +-0.010 (seed)   n_layer=2 n_embd=66 …
        law    not yet: 2 sizes with finished trials; three or more are needed
        next   sweeplab extend cut --time 7m
        """,
    ),
    "all diverged": (
        BANG,
        """
        bang   finished: 3 of 3 trials, all diverged; lowest learning_rate tried 1.2e+07
        best   none
        law    none
        next   sweeplab run bang --name bang-2 --search learning_rate=1e-4..1e-2
        """,
    ),
    "running": (
        RUNNING,
        """
        small  running: 14 of 30 trials (3 training, 13 waiting), 4 to 6 min left
        best   so far val_loss 1.380 +-0.010 (seed)   n_layer=2 n_embd=66 …
        law    not yet: 5 of 10 sizes done
        next   sweeplab watch small
        """,
    ),
}


@pytest.mark.parametrize(("facts", "screen"), SCREENS.values(), ids=SCREENS.keys())
def test_a_study_is_said_in_five_lines(facts, screen):
    said = headline(facts)
    assert said.lines == [line.strip() for line in screen.strip().splitlines()]
    assert all(len(line) <= WIDTH for line in said.lines)


STATES = {
    StudyState.NOT_STARTED: ("resume", "not started"),
    StudyState.QUEUED: ("watch", "queued"),
    StudyState.RUNNING: ("watch", "running"),
    StudyState.PAUSING: ("resume", "pausing"),
    StudyState.PAUSED: ("resume", "paused"),
    StudyState.STOPPING: ("watch", "stopping"),
    StudyState.ENDING: ("watch", "ending"),
    StudyState.INTERRUPTED: ("resume", "interrupted"),
    StudyState.WAITING: ("resume", "waiting"),
    StudyState.COMPLETE: ("confirm", "finished"),
    StudyState.STOPPED: ("extend", "stopped at its time budget of 5m"),
    StudyState.DIVERGED: ("run", "finished"),
    StudyState.FAILED: ("watch", "failed"),
}


@pytest.mark.parametrize("state", StudyState)
def test_every_state_has_its_word_and_its_next_command(state):
    command, word = STATES[state]
    close = replace(AHEAD, low=1.25, high=1.27)
    said = headline(
        replace(
            SMALL,
            state=state,
            ahead=close,
            cut="time budget of 5m",
            counted=30 if state is StudyState.COMPLETE else 12,
        )
    )
    assert said.state.startswith(f"{word}: ") and said.next.startswith(
        f"sweeplab {command} small"
    )


CLOSE = replace(AHEAD, low=1.25, high=1.27)
OTHERS = [
    (
        replace(SMALL, state=StudyState.WAITING, enqueued=8),
        "state",
        "waiting: 30 of 30 trials, 8 enqueued",
    ),
    (
        replace(RUNNING, total=None, begun=4),
        "law",
        "not yet: 4 sizes with finished trials so far",
    ),
    (replace(SMALL, ahead=CLOSE, is_confirmed=True), "next", ""),
    (
        replace(SMALL, ahead=None, why_no_law="the rows lie on one ray"),
        "law",
        "none: the rows lie on one ray",
    ),
    (replace(CUT, lab=("--lab", "there")), "next", "sweeplab extend cut --time 7m --lab there"),
]


@pytest.mark.parametrize(("facts", "line", "text"), OTHERS)
def test_a_line_says_what_is_so(facts, line, text):
    assert getattr(headline(facts), line) == text
