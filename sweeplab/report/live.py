"""A page that shows a study while it runs, and can pause, stop, extend and steer it.

It is served to this machine only, to whoever knows its address: see `tracking/private.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import json_ready, without_password
from sweeplab.lab.listing import find_metric, find_study, loss_unit_of, read_spec, study_names, study_state
from sweeplab.lab.moving import Done
from sweeplab.lab.showing import commands_about
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import MEASURED_ON, CurvePoint, RunEnd, RunFolder, RunStart, RunState, run_key
from sweeplab.sweep.control import steering
from sweeplab.sweep.control.following import Watched

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

FIRST_PORT = 8050
LOOK_SECONDS = 1.0
MOST_BYTES = 65_536  # of a request
# Only this page's own files and addresses; Plotly writes inline styles, and saves figures as data URLs.
_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data: blob:"
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

    def look(self) -> dict[str, Any]:
        """Return the state of the study, with only those runs and points that are new since the last look.

        A run has its key, state, values, iteration, latest and best loss; `points` are iterations and losses by run.
        """
        watched = self._watched = self._watched or Watched(self.folder, self._hear)
        self._unfinished = self.folder.unfinished
        deque(watched.news(), maxlen=0)
        progress = watched.progress
        plan, is_run = progress.plan, self._unfinished is RunState.RUNNING
        trials = {(row["cell"], row["trial"]): row for row in self._rows.values()}
        valued = [row for row in trials.values() if row["outcome"].has_value and row["value"] is not None]
        best = min(valued, key=lambda row: row["value"], default=None)
        how = best and commands_about(self.folder, self._starts[best["key"]].values.objective)
        live = [row["cell"] for row in self._rows.values() if row["state"] is RunState.RUNNING]
        slots = max((cell.stack for cell in plan.cells if cell.cell in live), default=0)
        metric = find_metric(self.folder)
        found = {
            "study": self.folder.name,
            "metric": metric,
            "unit": loss_unit_of(self.folder),
            "measured_on": MEASURED_ON.get(metric, ""),
            "state": progress.state,
            "is_run": is_run,
            "total": plan.trials,
            "counted": progress.counted,
            "left": progress.left.in_words if is_run else "",
            "best": best and {**best, "commands": how},
            "occupancy": {"running": len(live), "slots": max(len(live), slots * len(plan.workers))},
            "cells": [
                {
                    "cell": cell.cell,
                    "values": cell.values,
                    "n_params": cell.n_params,
                    "done": progress.cells[cell.cell].counted,
                    "best": progress.cells[cell.cell].best,
                }
                for cell in plan.cells
            ],
            "states": Counter(row["outcome"] for row in trials.values()),
            "runs": [*self._new_rows.values()],
            "points": self._new_points,
            "optuna": f"optuna-dashboard {without_password(self.folder.storage_url)}",
        }
        self._new_rows, self._new_points = {}, {}
        return found

    def _hear(self, run: RunFolder, points: Sequence[CurvePoint], end: RunEnd | None) -> None:
        key = run_key(run.cell, run.trial, run.seed)
        start = self._starts[key] = self._starts.get(key) or run.read_start()
        before = self._rows.get(key, {"iteration": 0, "loss": None, "best": None})
        losses = [(each.iteration, each.val_loss) for each in points if each.val_loss is not None]
        at, loss = losses[-1] if losses else (before["iteration"], before["loss"])
        known = [each for each in (before["best"], *(each for _, each in losses)) if each is not None]
        row = {
            "key": key,
            "cell": start.cell,
            "trial": start.trial,
            "seed": start.seed,
            "max_iters": start.values.max_iters,
            "sampled": dict(start.sampled),
            "state": end.state if end else self._unfinished,
            "outcome": end.ending.outcome if end else self._unfinished,
            "value": end.value if end else None,
            "iteration": end.iteration if end else at,
            "loss": loss,
            "best": min(known, default=None),
            "ended": end.ended if end else None,
        }
        if losses:
            self._new_points.setdefault(key, []).extend(losses)
        if row != self._rows.get(key):
            self._rows[key] = self._new_rows[key] = row


# The commands of the command line by name, each called with its arguments from a request.
ORDERS: dict[str, Callable[[StudyFolder, Mapping[str, Any]], Done]] = {
    "stop": lambda folder, given: steering.stop(folder),
    "pause": lambda folder, given: steering.pause(folder),
    "resume": lambda folder, given: steering.resume(folder) or _run(folder),
    "extend": lambda folder, given: steering.extend(folder, given.get("trials_per_cell"), given.get("time")),
    "enqueue": lambda folder, given: steering.enqueue(folder, str(given.get("values", "")).split()),
    "stop trial": lambda folder, given: steering.stop_trial(folder, int(given["trial"]), str(given["cell"])),
}


def give(folder: StudyFolder, order: str, given: Mapping[str, Any]) -> Done:
    """Give a study one of the commands.

    Raises:
        BadInput: there is no such command, or it is refused.
    """
    if order not in ORDERS:
        raise BadInput(f"there is no command {order!r}")
    try:
        return ORDERS[order](folder, given)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{order}: {error!r} is missing or wrong") from error


def _run(folder: StudyFolder) -> Done:
    """Run an idle study in a process that outlives the page."""
    words = ["study", "resume", folder.name, "--lab", str(folder.lab.absolute()), "--json"]
    by = steering.detach(read_spec(folder), folder.lab, words)
    return Done(f"{folder.name} is run by {by}", [folder.command("study stop")])


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

    from sweeplab.tracking.pages import free_port
    from sweeplab.tracking.private import Private, listen, private_address

    if name:
        find_study(lab, name)
    elif not study_names(lab):
        raise BadInput(f"{lab} has no study to look at yet; sweeplab study run FILE trains one")
    free = free_port(port if port is not None else FIRST_PORT)
    if port not in (None, free):
        raise BadInput(f"port {port} is in use; --port {free} is free, and without --port one is found")
    address = private_address(free)
    with (
        ExitStack() as stack,
        listen(free) as listening,
    ):  # requests before the server runs are answered once it does
        app = Private(application(lab, stack), address)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
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

    def text(kind: str, content: str) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    def refusing(
        answer: Callable[[Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer_or_refuse(request: Request) -> Response:
            try:
                return await answer(request)
            except (BadInput, TrackingUnavailable) as error:
                return JSONResponse({"error": str(error)}, 400)

        return answer_or_refuse

    async def page(request: Request) -> Response:
        return text("text/html", (Path(__file__).parent / "live.html").read_text(encoding="utf-8"))

    async def script(request: Request) -> Response:
        return text("text/javascript", (Path(__file__).parent / "live.js").read_text(encoding="utf-8"))

    async def plotly(request: Request) -> Response:
        from plotly.offline import get_plotlyjs

        return text("text/javascript", await run_in_threadpool(get_plotlyjs))

    async def studies(request: Request) -> Response:
        folders = [StudyFolder(lab, name) for name in study_names(lab)]
        run = [folder for folder in folders if folder.is_run]
        rows = [
            {"name": folder.name, "state": study_state(folder) if folder in run else None}
            for folder in folders
        ]
        return JSONResponse(rows)

    async def events(request: Request) -> Response:
        follower = Follower(find_study(lab, request.query_params.get("study", "")))
        return StreamingResponse(_stream(follower, request), media_type="text/event-stream", headers=_HEADERS)

    async def order(request: Request) -> Response:
        given = await _read(request)
        folder = find_study(lab, request.query_params.get("study", ""))
        done = await run_in_threadpool(give, folder, str(given.get("order")), given)
        return JSONResponse(asdict(done))

    async def mlflow(request: Request) -> Response:
        from sweeplab.report.browse import browse

        name = request.query_params.get("study", "")
        if name not in links:
            shown = await run_in_threadpool(lambda: stack.enter_context(browse(lab, name)))
            links.update(shown.links)
        return JSONResponse(dict(links[name]))

    pages = {"/": page, "/live.js": script, "/plotly.js": plotly, "/studies": studies, "/events": events}
    routes = [Route(path, refusing(each)) for path, each in pages.items()]
    routes += [
        Route(path, refusing(each), methods=["POST"])
        for path, each in {"/order": order, "/mlflow": mlflow}.items()
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
        given = json.loads(content or b"{}")
        json.dumps(
            given, ensure_ascii=False
        ).encode()  # fails on half a surrogate, and on a number without end
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise BadInput('a request is a JSON object, such as {"order": "stop"}')
    return given


async def _stream(follower: Follower, request: Request) -> AsyncIterator[str]:
    """Yield server-sent events: the state of the study, whenever it changes."""
    from starlette.concurrency import run_in_threadpool

    said = ""
    while not await request.is_disconnected():
        try:
            found = json.dumps(json_ready(await run_in_threadpool(follower.look)))
        except (BadInput, TrackingUnavailable) as error:  # such as a study that is being removed
            found = json.dumps({"error": str(error)})
        yield f"data: {found}\n\n" if found != said else ": nothing new\n\n"
        said = found
        await asyncio.sleep(LOOK_SECONDS)
