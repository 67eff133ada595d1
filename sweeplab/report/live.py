"""A study while it runs: the page that shows and steers it, and the table of a notebook.

The page is served to this machine only, to whoever knows its address: see `tracking/private.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem, TrackingUnavailable
from sweeplab.formatting import json_ready, measured, out_of, several, without_password
from sweeplab.lab.describing import keep_note
from sweeplab.lab.events import Event, RunEvaluated, Tick
from sweeplab.lab.listing import (
    StudyState,
    find_metric,
    find_study,
    loss_unit_of,
    read_spec,
    study_names,
    study_state,
)
from sweeplab.lab.moving import Done
from sweeplab.lab.showing import commands_about
from sweeplab.records.folders import StudyFolder
from sweeplab.records.notes import Note, read_notes
from sweeplab.records.runs import (
    MEASURED_ON,
    CurvePoint,
    RunEnd,
    RunFolder,
    RunStart,
    RunState,
    TrialEnding,
    run_key,
)
from sweeplab.report.style import looks
from sweeplab.sweep import steering
from sweeplab.sweep.following import Watched
from sweeplab.sweep.progress import StudyProgress, time_in_words

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


LOOK_SECONDS = 1.0
MOST_BYTES = 65_536  # of a request
# Only this page's own files and addresses; Plotly writes inline styles, and saves figures as data URLs.
_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data: blob:"
_POLICY += "; frame-src 'self'"
_REPORT = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_REPORT_HEADERS = {
    "Content-Security-Policy": f"{_REPORT}; frame-ancestors 'self'",
    "Cache-Control": "no-store",
}
_HEADERS = {"Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'", "Cache-Control": "no-store"}


@dataclass
class Follower:
    """Follows a study through its folder and its commands, whichever process runs it; each look returns what is new."""

    folder: StudyFolder
    _watched: Watched | None = None
    _unfinished: RunState = RunState.WAITING
    _starts: dict[str, RunStart] = field(default_factory=dict)
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _new_rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _new_points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _notes: dict[str, Note] = field(default_factory=dict)

    def look(self) -> dict[str, Any]:
        """Return the state of the study, with only those runs and points that are new since the last look.

        A run has its key, state, values, iteration, latest and best loss, and the note of its trial; `points` are
        iterations and losses by run. A cell has the color that it has in reports.
        """
        watched = self._watched = self._watched or Watched(self.folder, self._hear)
        self._unfinished = self.folder.unfinished
        deque(watched.news(), maxlen=0)
        self._take_notes()
        progress = watched.progress
        plan, is_run = progress.plan, self._unfinished is RunState.RUNNING
        trials = {(row["cell"], row["trial"]): row for row in self._rows.values()}
        valued = [row for row in trials.values() if row["outcome"].has_value and row["value"] is not None]
        best = min(valued, key=lambda row: row["value"], default=None)
        how = best and commands_about(self.folder, self._starts[best["key"]].values.objective)
        live = [row["cell"] for row in self._rows.values() if row["state"] is RunState.RUNNING]
        slots = max((cell.stack for cell in plan.cells if cell.cell in live), default=0)
        metric = find_metric(self.folder)
        sizes = sorted(plan.cells, key=lambda cell: cell.n_params)
        colors = {look.name: look.color for look in looks([cell.cell for cell in sizes])}
        objective = next((start.values.objective for start in self._starts.values()), "")
        commands = commands_about(self.folder, objective, "{cell}", "{trial}", "{seed}")
        state = {
            "study": self.folder.name,
            "metric": metric,
            "unit": loss_unit_of(self.folder),
            "measured_on": MEASURED_ON.get(metric, ""),
            "state": progress.state,
            "is_run": is_run,
            "total": plan.trials,
            "counted": progress.counted,
            "left": time_in_words(progress.left) if progress.state == StudyState.RUNNING else "",
            "best": best and {**best, "commands": how},
            "occupancy": {"running": len(live), "slots": max(len(live), slots * len(plan.workers))},
            "cells": [
                {
                    "cell": cell.cell,
                    "values": cell.values,
                    "n_params": cell.n_params,
                    "color": colors[cell.cell],
                    "done": progress.cells[cell.cell].counted,
                    "best": progress.cells[cell.cell].best,
                }
                for cell in plan.cells
            ],
            "states": Counter(row["outcome"] for row in trials.values()),
            "runs": [*self._new_rows.values()],
            "points": self._new_points,
            "commands": {what: shlex.split(text) for what, text in commands.items() if what != "open"},
            "optuna": f"optuna-dashboard {without_password(self.folder.storage_url)}",
        }
        self._new_rows, self._new_points = {}, {}
        return state

    def _take_notes(self) -> None:
        """Send the runs of trials again whose notes have changed."""
        notes = read_notes(self.folder)
        for key, row in self._rows.items():
            place = f"{row['cell']}/{row['trial']}"
            if notes.get(place) != self._notes.get(place):
                note = notes.get(place, Note())
                self._rows[key] = self._new_rows[key] = row | {"note": note.text, "tags": note.tags}
        self._notes = notes

    def _hear(self, run: RunFolder, points: Sequence[CurvePoint], end: RunEnd | None) -> None:
        key = run_key(run.cell, run.trial, run.seed)
        start = self._starts[key] = self._starts.get(key) or run.read_start()
        before = self._rows.get(key, {"iteration": 0, "loss": None, "best": None, "checkpoint": None})
        note = self._notes.get(f"{run.cell}/{run.trial}", Note())
        losses = [(point.iteration, point.val_loss) for point in points if point.val_loss is not None]
        at, loss = [(before["iteration"], before["loss"]), *losses][-1]
        known = [loss for loss in (before["best"], *(loss for _, loss in losses)) if loss is not None]
        open_end = RunEnd(
            state=self._unfinished, iteration=at, value=None, ending=TrialEnding(self._unfinished, None)
        )
        record, checkpoint = end or open_end, before["checkpoint"]
        if end:
            checkpoint = run.checkpoint()
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
            "note": note.text,
            "tags": note.tags,
        }
        if losses:
            self._new_points.setdefault(key, []).extend(losses)
        if row != self._rows.get(key):
            self._rows[key] = self._new_rows[key] = row


# The commands of the command line by name, each called with its arguments from a request.
ORDERS: dict[str, Callable[[StudyFolder, Mapping[str, Any]], Done]] = {
    "stop": lambda folder, values: steering.stop(folder),
    "pause": lambda folder, values: steering.pause(folder),
    "resume": lambda folder, values: steering.resume(folder) or _run(folder),
    "extend": lambda folder, values: steering.extend(
        folder, values.get("trials_per_cell"), values.get("time")
    ),
    "enqueue": lambda folder, values: steering.enqueue(folder, str(values.get("values", "")).split()),
    "stop trial": lambda folder, values: steering.stop_trial(folder, _trial(values), str(values["cell"])),
    "note": lambda folder, values: keep_note(
        folder, str(values["text"]), str(values["tags"]).split(","), (str(values["cell"]), _trial(values))
    ),
}


def give(folder: StudyFolder, order: str, values: Mapping[str, Any]) -> Done:
    """Give a study one of the commands.

    Raises:
        BadInput: there is no such command, or it is refused.
    """
    if order not in ORDERS:
        raise BadInput(f"there is no command {order!r}")
    try:
        return ORDERS[order](folder, values)
    except KeyError as error:
        raise BadInput(f"{order} lacks {error.args[0]}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{order} takes no such values: {error}") from error


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
def live_page(
    lab: Path, name: str | None, write_sweep: Callable[[StudyFolder], str], port: int | None = None
) -> Iterator[Live]:
    """Open the page of one study, or of all studies of a lab, at a port of this machine.

    `write_sweep` returns the page of a study's trials, which is shown while the study is not run.

    Raises:
        BadInput: there is no such study, or the port is taken.
    """
    import uvicorn

    from sweeplab.tracking.private import Private, listen, private_address

    if name:
        find_study(lab, name)
    elif not study_names(lab):
        raise BadInput(f"{lab} has no study to look at yet; sweeplab run FILE trains one")
    with ExitStack() as stack, listen(port) as listening:
        address = private_address(listening)
        app = Private(application(lab, stack, write_sweep), address)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        query = f"?study={name}" if name else ""
        yield Live(f"{address}/{query}", lambda: server.run(sockets=[listening]))


def application(lab: Path, stack: ExitStack, write_sweep: Callable[[StudyFolder], str]) -> Starlette:
    """Return the pages of a lab's studies; `stack` stops MLflow's server, if one was started.

    `write_sweep` returns the page of a study's trials.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    links: dict[str, Mapping[str, str]] = {}

    def text(kind: str, content: str) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    def refusing(
        answer: Callable[[Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer_or_refuse(request: Request) -> Response:
            try:
                return await answer(request)
            except (BadInput, TrackingUnavailable) as error:
                # Options of the command line that an error names are words on the page.
                words = re.sub(r"--([a-z][a-z-]*)", lambda option: option[1].replace("-", " "), str(error))
                return JSONResponse({"error": words}, 400)

        return answer_or_refuse

    def file(kind: str, *names: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            parts = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names)
            return text(kind, "\n".join(parts))

        return answer

    async def report(request: Request) -> Response:
        folder = find_study(lab, request.query_params.get("study", ""))
        content = await run_in_threadpool(write_sweep, folder)
        return Response(content, media_type="text/html", headers=_REPORT_HEADERS)

    async def plotly(request: Request) -> Response:
        from plotly.offline import get_plotlyjs

        return text("text/javascript", await run_in_threadpool(get_plotlyjs))

    async def studies(request: Request) -> Response:
        folders = [StudyFolder(lab, name) for name in study_names(lab)]
        states = {folder: study_state(folder) for folder in folders if folder.is_run}
        return JSONResponse([{"name": folder.name, "state": states.get(folder)} for folder in folders])

    async def events(request: Request) -> Response:
        follower = Follower(find_study(lab, request.query_params.get("study", "")))
        return StreamingResponse(_stream(follower, request), media_type="text/event-stream", headers=_HEADERS)

    async def order(request: Request) -> Response:
        values = await _read(request)
        folder = find_study(lab, request.query_params.get("study", ""))
        done = await run_in_threadpool(give, folder, str(values.get("order")), values)
        return JSONResponse(asdict(done))

    async def mlflow(request: Request) -> Response:
        from sweeplab.report.browse import browse

        name = request.query_params.get("study", "")
        if name not in links:
            shown = await run_in_threadpool(lambda: stack.enter_context(browse(lab, name)))
            links[name] = shown.links
        return JSONResponse(dict(links[name]))

    pages = {"/": file("text/html", "live.html"), "/live.js": file("text/javascript", "trial.js", "live.js")}
    pages |= {"/plotly.js": plotly, "/studies": studies, "/events": events, "/report": report}
    routes = [Route(path, refusing(each)) for path, each in pages.items()]
    routes += [
        Route(path, refusing(answer), methods=["POST"])
        for path, answer in {"/order": order, "/mlflow": mlflow}.items()
    ]
    return Starlette(routes=routes)


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
        raise BadInput('a request is a JSON object of texts and finite numbers, such as {"order": "stop"}')
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


MOST_CELLS = 30
# In the text's own color, so that it is legible on light and dark.
_STYLE = (
    "<style>.sweeplab td,.sweeplab th{text-align:right!important;padding:2px 10px}"
    ".sweeplab td:first-child,.sweeplab th:first-child{text-align:left!important}"
    ".sweeplab tr.best td{font-weight:600}</style>"
)
REFRESH_SECONDS = 0.5
# Those that have ended first.
_STATES = (*filter(lambda state: state.is_finished, RunState), RunState.RUNNING, RunState.WAITING)


def study_html(name: str, lab: str, shown: Mapping[str, Any] | None) -> str:
    """Return the HTML for the result of `show_study`; None means that the study has not been run."""
    head = f"<div class='sweeplab'>{_STYLE}<b>{escape(name)}</b> <small>in {escape(lab)}</small>"
    if shown is None:
        return f"{head}<p>not run yet</p></div>"
    cells = shown["cells"]
    states = [state for state in _STATES if any(cell.get(state) for cell in cells)]
    titles = ["cell", "parameters", "trials", *states, shown["metric"]]
    lowest = min((cell["best_value"] for cell in cells if cell["best_value"] is not None), default=None)
    rows = [_row(cell, shown["trials_per_cell"], states, lowest) for cell in cells[:MOST_CELLS]]
    header = _cells(titles, "th")
    more, left = "", len(cells) - MOST_CELLS
    if left > 0:
        more = f"<p>and {several(left, 'more cell')}</p>"
    return f"{head}<table><tr>{header}</tr>{''.join(rows)}</table>{more}{_best(shown)}</div>"


def _row(cell: Mapping[str, Any], total: int | None, states: Iterable[str], lowest: float | None) -> str:
    best = cell["best_value"]
    values = [
        cell["cell"],
        measured(cell["n_params"], ","),
        out_of(cell["trials"], total),
        *(str(cell.get(state) or "–") for state in states),
        measured(best, ".4f"),
    ]
    mark = " class='best'" if best is not None and best == lowest else ""
    return f"<tr{mark}>{_cells(values, 'td')}</tr>"


def _cells(values: Iterable[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values)


def _best(shown: Mapping[str, Any]) -> str:
    best = shown["best"]
    if not best:
        return "<p>no trial has ended yet</p>"
    values = {name: f"{value:.4g}" for name, value in best["sampled"].items() if isinstance(value, float)}
    searched = ", ".join(f"{name} {values.get(name, value)}" for name, value in best["sampled"].items())
    how = f"with {escape(searched)}" if searched else ""
    return f"<p>best: {best['value']:.4f} by {escape(best['key'])} {how}</p>"


def live_in_notebook(name: str) -> Callable[[Event, StudyProgress], None] | None:
    """Return a callback that shows a running study in this notebook; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    from importlib import import_module

    shown: Any = import_module("IPython.display")
    handle, drawn = shown.display(shown.HTML(f"{escape(name)}: starting"), display_id=True), 0.0

    def show(event: Event, progress: StudyProgress) -> None:
        nonlocal drawn
        now = time.monotonic()
        if not isinstance(event, Tick) or now - drawn > REFRESH_SECONDS:
            drawn = now
            handle.update(shown.HTML(progress_html(name, progress)))

    return show


def progress_html(name: str, progress: StudyProgress) -> str:
    """Return the HTML of a running study: a bar, and what is done, best and running in each cell."""
    total, per_cell = progress.plan.trials, progress.plan.budget.trials_per_cell
    done_of_all, bar = several(progress.counted, "trial"), ""
    if total:
        bar = f"<progress value='{progress.counted}' max='{total}'></progress> "
        done_of_all = f"{progress.counted} of {several(total, 'trial')}"
    rows = []
    for plan in progress.plan.cells[:MOST_CELLS]:
        cell, running = progress.cells[plan.cell], []
        for (key, number), event in sorted(progress.live.items()):
            reached = "…"
            if isinstance(event, RunEvaluated):
                reached = f"{event.iteration} {event.val_loss:.3f}"
            if key == plan.cell:
                running.append(f"#{number} {reached}")
        done = out_of(cell.counted, per_cell and plan.n_trials(per_cell))
        best, live = measured(cell.best, ".4f"), ", ".join(running) or "–"
        rows.append(f"<tr>{_cells([plan.cell, f'{plan.n_params:,}', done, best, live], 'td')}</tr>")
    header = _cells(["cell", "parameters", "trials", progress.plan.metric, "running"], "th")
    head = f"<b>{escape(name)}</b> {bar}{done_of_all}"
    return f"<div class='sweeplab'>{_STYLE}{head}<table><tr>{header}</tr>{''.join(rows)}</table></div>"
