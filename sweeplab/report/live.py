"""A study while it runs: the page that shows and steers it.

The page is served to this machine only, to whoever knows its address: see `tracking/pages.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, TrackingUnavailable
from sweeplab.formatting import json_ready
from sweeplab.lab.listing import (
    StudyState,
    find_metric,
    find_study,
    loss_unit_of,
    read_spec,
    study_names,
    study_state,
)
from sweeplab.lab.showing import commands_about
from sweeplab.lab.studies import Done, keep_note
from sweeplab.records.folders import StudyFolder
from sweeplab.records.kept import read_notes
from sweeplab.records.runs import (
    CurvePoint,
    RunEnd,
    RunFolder,
    RunStart,
    RunState,
    TrialEnding,
    run_key,
)
from sweeplab.report.headline import Headline, StudyFacts, headline, read_facts, read_headline
from sweeplab.report.style import looks
from sweeplab.sweep import steering
from sweeplab.sweep.progress import StudyProgress, Watched, time_in_words

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    Answer = Callable[[Request], Awaitable[Response]]

LOOK_SECONDS = 1.0
MOST_BYTES = 65_536  # of a request
# Only this page's own files and addresses; Plotly writes inline styles, and saves figures as data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
# The page's files by their addresses.
_FILES = {
    "/": ("text/html", ["live.html"]),
    "/style.css": ("text/css", ["style.css"]),
    "/live.js": ("text/javascript", ["trial.js", "live.js"]),
}


@dataclass
class Follower:
    """Follows a study through its folder and its commands, whichever process runs it; each look returns what is new."""

    folder: StudyFolder
    _watched: Watched | None = None
    _facts: StudyFacts | None = None
    _known: object = None  # what the facts were read of
    _over: Headline | None = None
    _unfinished: RunState = RunState.WAITING
    _starts: dict[str, RunStart] = field(default_factory=dict)
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _new_rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _new_points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)

    def look(self) -> dict[str, Any]:
        """Return the state of the study, with only those runs and points that are new since the last look.

        A run has its key, state, values, iteration, latest and best loss, and the note of its trial; `points` are
        iterations and losses by run. A cell has the color that it has in reports. `best` is the chosen trial's key.
        """
        watched = self._watched = self._watched or Watched(self.folder, self._hear)
        self._unfinished = self.folder.unfinished
        deque(watched.news(), maxlen=0)
        self._take_notes()
        progress, plan = watched.progress, watched.progress.plan
        states = {(row["cell"], row["trial"]): row["outcome"] for row in self._rows.values()}
        first, facts = self._headline(progress, states)
        best = ""
        if facts.best:
            place = facts.best.cell, facts.best.trial
            best = next(
                key for key, row in self._rows.items() if (row["cell"], row["trial"]) == place
            )
        sizes = sorted(plan.cells, key=lambda cell: cell.n_params)
        colors = {look.name: look.color for look in looks([cell.cell for cell in sizes])}
        cells = []
        for cell in plan.cells:
            done = progress.cells[cell.cell]
            row = {"cell": cell.cell, "values": cell.values, "n_params": cell.n_params}
            cells.append(
                row | {"color": colors[cell.cell], "done": done.counted, "lowest": done.best}
            )
        objective = next((start.values.objective for start in self._starts.values()), "")
        commands = commands_about(self.folder, objective, "{cell}", "{trial}", "{seed}")
        state = {
            "study": self.folder.name,
            "headline": first.as_dict(),
            "metric": find_metric(self.folder),
            "unit": loss_unit_of(self.folder),
            "state": progress.state,
            "is_run": self._unfinished is RunState.RUNNING,
            "total": plan.trials,
            "counted": progress.counted,
            "best": best,
            "cells": cells,
            "states": Counter(states.values()),
            "runs": list(self._new_rows.values()),
            "points": self._new_points,
            "commands": {
                what: shlex.split(text) for what, text in commands.items() if what != "open"
            },
        }
        self._new_rows, self._new_points = {}, {}
        return state

    def _headline(
        self, progress: StudyProgress, states: Mapping[tuple[str, int], RunState]
    ) -> tuple[Headline, StudyFacts]:
        """Return the headline and its facts, which are read again when a trial or the study changed its state."""
        known = progress.state, progress.plan.trials, progress.counted, dict(states)
        if self._facts is None or known != self._known:
            self._facts, self._known, self._over = read_facts(self.folder), known, None
        if self._facts.is_over:
            self._over = self._over or read_headline(self.folder)
            return self._over, self._facts
        left = ""
        if progress.state is StudyState.RUNNING:
            left = time_in_words(progress.left)
        return headline(replace(self._facts, left=left)), self._facts

    def _take_notes(self) -> None:
        """Send the runs of trials again whose notes have changed."""
        notes = read_notes(self.folder)
        for key, row in self._rows.items():
            place = f"{row['cell']}/{row['trial']}"
            if notes.get(place) != self._notes.get(place):
                self._rows[key] = self._new_rows[key] = row | {"note": notes.get(place, "")}
        self._notes = notes

    def _hear(self, run: RunFolder, points: Sequence[CurvePoint], end: RunEnd | None) -> None:
        key = run_key(run.cell, run.trial, run.seed)
        start = self._starts[key] = self._starts.get(key) or run.read_start()
        before = self._rows.get(key, {"iteration": 0, "loss": None, "best": None})
        losses = [
            (point.iteration, point.val_loss) for point in points if point.val_loss is not None
        ]
        iteration, loss = before["iteration"], before["loss"]
        if losses:
            iteration, loss = losses[-1]
        known = [
            each for each in (before["best"], *(loss for _, loss in losses)) if each is not None
        ]
        ending = TrialEnding(self._unfinished, None)
        record = end or RunEnd(
            state=self._unfinished, iteration=iteration, value=None, ending=ending
        )
        checkpoint = run.checkpoint() if end else None
        row = {
            "key": key,
            "cell": start.cell,
            "trial": start.trial,
            "seed": start.seed,
            "max_iters": start.values.max_iters,
            "sampled": dict(start.sampled),
            "state": record.state,
            "outcome": record.ending.outcome,
            "value": record.value,
            "iteration": record.iteration,
            "loss": loss,
            "best": min(known, default=None),
            "ended": end and end.ended,
            "checkpoint": checkpoint and str(checkpoint),
            "note": self._notes.get(f"{run.cell}/{run.trial}", ""),
        }
        if losses:
            self._new_points.setdefault(key, []).extend(losses)
        if row != self._rows.get(key):
            self._rows[key] = self._new_rows[key] = row


def give(folder: StudyFolder, order: str, values: Mapping[str, Any]) -> Done:
    """Give a study one of the commands.

    Raises:
        BadInput: there is no such command, or it is refused.
    """
    try:
        return _give(folder, order, values)
    except KeyError as error:
        raise BadInput(f"{order} lacks {error.args[0]}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{order} takes no such values: {error}") from error


def _give(folder: StudyFolder, order: str, values: Mapping[str, Any]) -> Done:
    match order:
        case "stop":
            return steering.stop(folder)
        case "pause":
            return steering.pause(folder)
        case "resume":
            return steering.resume(folder) or _run(folder)
        case "extend":
            return steering.extend(folder, values.get("trials_per_cell"), values.get("time"))
        case "enqueue":
            return steering.enqueue(folder, str(values.get("values", "")).split())
        case "stop trial":
            return steering.stop_trial(folder, _trial(values), str(values["cell"]))
        case "note":
            trial = str(values["cell"]), _trial(values)
            return keep_note(folder, str(values["text"]), trial)
    raise BadInput(f"there is no command {order!r}")


def _trial(values: Mapping[str, Any]) -> int:
    text = str(values["trial"])
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    raise BadInput(Problem(f"trial is {text}", "a whole number"))


def _run(folder: StudyFolder) -> Done:
    """Run an idle study in a process that outlives the page."""
    words = ["resume", folder.name, "--lab", str(folder.lab.absolute()), "--json"]
    by = steering.detach(read_spec(folder), folder.lab, words)
    return Done(f"{folder.name} is run by {by}", [folder.command("stop")])


@dataclass(frozen=True)
class Live:
    """The page's address; `serve` serves it until interrupted."""

    url: str
    serve: Callable[[], None]


@contextmanager
def live_page(lab: Path, name: str | None, port: int | None = None) -> Iterator[Live]:
    """Open the page of one study, or of all studies of a lab, at a port of this machine.

    Raises:
        BadInput: there is no such study, or the port is taken.
    """
    import uvicorn

    from sweeplab.tracking.pages import Private, listen, private_address

    if name:
        find_study(lab, name)
    elif not study_names(lab):
        raise BadInput(f"{lab} has no study to look at yet; sweeplab run FILE trains one")
    with ExitStack() as stack, listen(port) as listening:
        address = private_address(listening)
        app = Private(application(lab, stack), address)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        query = f"?study={name}" if name else ""
        yield Live(f"{address}/{query}", lambda: server.run(sockets=[listening]))


def application(lab: Path, stack: ExitStack) -> Starlette:
    """Return the pages of a lab's studies; `stack` stops MLflow's server, if one was started."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    links: dict[str, Mapping[str, str]] = {}

    def asked(request: Request) -> StudyFolder:
        return find_study(lab, request.query_params.get("study", ""))

    async def file(request: Request) -> Response:
        kind, names = _FILES[
            request.url.path.removeprefix(str(request.scope.get("root_path", "")))
        ]
        parts = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in names]
        return Response("\n".join(parts), media_type=kind, headers=_HEADERS)

    async def plotly(request: Request) -> Response:
        from plotly.offline import get_plotlyjs

        content = await run_in_threadpool(get_plotlyjs)
        return Response(content, media_type="text/javascript", headers=_HEADERS)

    async def studies(request: Request) -> Response:
        folders = [StudyFolder(lab, name) for name in study_names(lab)]
        states = {folder: study_state(folder) for folder in folders if folder.is_run}
        return JSONResponse(
            [{"name": folder.name, "state": states.get(folder)} for folder in folders]
        )

    async def events(request: Request) -> Response:
        follower = Follower(asked(request))
        return StreamingResponse(
            _stream(follower, request), media_type="text/event-stream", headers=_HEADERS
        )

    async def order(request: Request) -> Response:
        values = await _read(request)
        done = await run_in_threadpool(give, asked(request), str(values.get("order")), values)
        return JSONResponse(asdict(done))

    async def mlflow(request: Request) -> Response:
        from sweeplab.report.browse import browse

        name = request.query_params.get("study", "")
        if name not in links:
            shown = await run_in_threadpool(lambda: stack.enter_context(browse(lab, name)))
            links[name] = shown.links
        return JSONResponse(dict(links[name]))

    gets: dict[str, Answer] = dict.fromkeys(_FILES, file)
    gets |= {"/plotly.js": plotly, "/studies": studies, "/events": events}
    posts: dict[str, Answer] = {"/order": order, "/mlflow": mlflow}
    routes = [Route(path, _refusing(answer)) for path, answer in gets.items()]
    routes += [
        Route(path, _refusing(answer), methods=["POST"]) for path, answer in posts.items()
    ]
    return Starlette(routes=routes)


def _refusing(answer: Answer) -> Answer:
    """Answer a refused request by what is wrong with it."""
    from starlette.responses import JSONResponse

    async def answer_or_refuse(request: Request) -> Response:
        try:
            return await answer(request)
        except (BadInput, TrackingUnavailable) as error:
            # Options of the command line that an error names are words on the page.
            words = re.sub(
                r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", " "), str(error)
            )
            return JSONResponse({"error": words}, 400)

    return answer_or_refuse


async def _read(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request sends.

    Raises:
        BadInput: it is none, or too long.
    """
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > MOST_BYTES:
            raise BadInput(f"a request has at most {MOST_BYTES:,} bytes")
    try:
        values = json.loads(content or b"{}")
        # Fails on half a surrogate, and on a number without end or that is not finite, such as 1e999.
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise BadInput(
            'a request is a JSON object of texts and finite numbers, such as {"order": "stop"}'
        )
    return values


async def _stream(follower: Follower, request: Request) -> AsyncIterator[str]:
    """Yield server-sent events: the state of the study, whenever it changes."""
    from starlette.concurrency import run_in_threadpool

    sent = ""
    while not await request.is_disconnected():
        try:
            state = json.dumps(json_ready(await run_in_threadpool(follower.look)))
        except BadInput as error:  # such as a study that is being removed
            state = json.dumps({"error": str(error)})
        yield f"data: {state}\n\n" if state != sent else ": nothing new\n\n"
        sent = state
        await asyncio.sleep(LOOK_SECONDS)
