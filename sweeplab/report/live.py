"""A page that shows a study while it runs, and gives it the orders of the command line.

The server listens on this machine alone. Every request needs the token of the page's address, and a host that is this
machine's: a page of somebody else's in the same browser can neither read a study nor order it.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, TrackingUnavailable
from sweeplab.formatting import json_ready, without_password
from sweeplab.lab.listing import Trial, find_metric, find_study, loss_unit_of, read_spec, study_names
from sweeplab.lab.moving import Done
from sweeplab.lab.showing import how_to_use, n_planned
from sweeplab.records.folders import StudyFolder
from sweeplab.records.runs import CurveReader, RunEnd, RunFolder, RunStart, RunState
from sweeplab.sweep.control import steering
from sweeplab.sweep.control.following import read_plan
from sweeplab.sweep.trials.commands import Commands

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST, FIRST_PORT = "127.0.0.1", 8050
HOSTS = (HOST, "localhost")
LOOK_SECONDS = 1.0
PHASES = {"pause": "paused", "stop": "stopping", "over": "its time is over", "closing": "ending"}
# Nothing but this page's own files and addresses; Plotly writes styles, and pictures of figures are data.
_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data: blob:"
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


@dataclass
class _Followed:
    """One run: what it trains, its curve as it comes, and how it ended."""

    start: RunStart
    curve: CurveReader
    end: RunEnd | None = None
    iteration: int = 0
    loss: float | None = None
    best: float | None = None


@dataclass
class Follower:
    """Follows a study from its folder and its commands, whoever runs it; each look tells what is new."""

    folder: StudyFolder
    _runs: dict[Path, _Followed] = field(default_factory=dict)
    _told: dict[str, Any] = field(default_factory=dict)
    _commands: Commands | None = None

    def look(self) -> dict[str, Any]:
        """Return how the study stands; of trials and points only what is new since the last look.

        A run has its place, state, values, iteration, latest and best loss; `points` are iterations and losses by run.
        """
        self._commands = self._commands or Commands.open(self.folder)
        self._commands.read()
        plan, is_run = read_plan(self.folder), self.folder.is_run
        points = dict(self._new_points())
        rows = {each.start.key: self._row(each, is_run) for each in self._runs.values()}
        news = [row for key, row in rows.items() if self._told.get(key) != row]
        self._told = rows
        trials = {(row["cell"], row["trial"]): row for row in rows.values()}
        counted = [row for row in trials.values() if RunState(row["outcome"]).counts_towards_budget]
        valued = [row for row in counted if RunState(row["outcome"]).has_value and row["value"] is not None]
        live = [row for row in rows.values() if row["state"] == RunState.RUNNING]
        best, total = min(valued, key=lambda row: row["value"], default=None), n_planned(self.folder)
        slots = max(
            (cell.stack for cell in plan.cells if cell.cell in {row["cell"] for row in live}), default=0
        )
        state = self._commands.state
        new, seconds = len(counted) - state.start.done_before, time.time() - state.start.given
        left = None if total is None or new <= 0 or not is_run else (total - len(counted)) * seconds / new
        if plan.budget.time is not None and is_run:
            limit = max(0.0, plan.budget.time - state.start.elapsed_before - seconds)
            left = limit if left is None else min(left, limit)
        return {
            "study": self.folder.name,
            "metric": find_metric(self.folder),
            "unit": loss_unit_of(self.folder),
            "phase": PHASES.get(state.phase, "running") if is_run else state.status or "not running",
            "is_run": is_run,
            "total": total,
            "counted": len(counted),
            "seconds_left": left,
            "best": best and best | {"commands": how_to_use(self._trial(best))},
            "occupancy": {"running": len(live), "slots": max(len(live), slots * len(plan.workers))},
            "cells": [
                {
                    "cell": cell.cell,
                    "values": cell.values,
                    "n_params": cell.n_params,
                    "done": sum(row["cell"] == cell.cell for row in counted),
                    "best": min((row["value"] for row in valued if row["cell"] == cell.cell), default=None),
                }
                for cell in plan.cells
            ],
            "states": Counter(row["outcome"] for row in trials.values()),
            "runs": news,
            "points": points,
            "optuna": f"optuna-dashboard {without_password(self.folder.storage_url)}",
        }

    def _new_points(self) -> Iterator[tuple[str, list[tuple[int, float]]]]:
        for run in self.folder.runs():
            own = self._runs.get(run.path)
            if own is None:
                own = self._runs[run.path] = _Followed(run.read_start(), CurveReader(run))
            if own.end and run.end_file.exists():
                continue
            own.end = None  # a pruned run that was promoted goes on
            found = [
                (each.iteration, each.val_loss)
                for each in own.curve.new_points()
                if each.val_loss is not None
            ]
            own.end = run.read_end()
            for own.iteration, own.loss in found:
                own.best = own.loss if own.best is None else min(own.best, own.loss)
            if found:
                yield own.start.key, [(at, loss) for at, loss in found if math.isfinite(loss)]

    def _row(self, own: _Followed, is_run: bool) -> dict[str, Any]:
        start, end, unfinished = own.start, own.end, RunState.RUNNING if is_run else RunState.WAITING
        return {
            "key": start.key,
            "cell": start.cell,
            "trial": start.trial,
            "seed": start.seed,
            "state": end.state if end else unfinished,
            "outcome": end.ending.outcome if end else unfinished,
            "value": end.value if end else None,
            "iteration": end.iteration if end else own.iteration,
            "max_iters": start.values.max_iters,
            "loss": own.loss,
            "best": own.best,
            "sampled": dict(start.sampled),
            "ended": end.ended if end else None,
        }

    def _trial(self, row: Mapping[str, Any]) -> Trial:
        run = RunFolder(self.folder.path / "runs" / row["cell"] / f"{row['trial']}-{row['seed']}")
        return Trial(self.folder, row["cell"], row["trial"], [run])


# The commands of the command line, by their words there, and what of a request each of them is given.
ORDERS: dict[str, Callable[[StudyFolder, Mapping[str, Any]], Done]] = {
    "stop": lambda folder, given: steering.stop(folder),
    "pause": lambda folder, given: steering.pause(folder),
    "resume": lambda folder, given: steering.resume(folder) or _run(folder),
    "extend": lambda folder, given: steering.extend(folder, given.get("trials_per_cell"), given.get("time")),
    "enqueue": lambda folder, given: steering.enqueue(folder, str(given.get("values", "")).split()),
    "stop trial": lambda folder, given: steering.stop_trial(folder, int(given["trial"]), str(given["cell"])),
}


def give(folder: StudyFolder, order: str, given: Mapping[str, Any]) -> Done:
    """Give a study one of the orders.

    Raises:
        BadInput: there is no such order, or it is refused.
    """
    if order not in ORDERS:
        raise BadInput(f"there is no order {order!r}")
    try:
        return ORDERS[order](folder, given)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{order}: {error!r} is missing or wrong") from error


def _run(folder: StudyFolder) -> Done:
    """Run a study that nobody runs, so that it outlives the page."""
    words = ["study", "resume", folder.name, "--lab", str(folder.lab.absolute()), "--json"]
    by = steering.detach(read_spec(folder), folder.lab, words)
    return Done(f"{folder.name} is run by {by}", [folder.command("study stop")])


@dataclass(frozen=True)
class Live:
    """The page's address, with its token, and what serves it until `serve` is interrupted."""

    url: str
    serve: Callable[[], None]


@contextmanager
def live_page(lab: Path, name: str | None, port: int | None = None) -> Iterator[Live]:
    """Open the page of a study, or of all that a lab has, at a port of this machine.

    Raises:
        BadInput: there is no such study, or the port is taken.
    """
    import uvicorn

    from sweeplab.tracking.pages import free_port

    if name:
        find_study(lab, name)
    elif not study_names(lab):
        raise BadInput(f"{lab} has no study to look at yet; sweeplab study run FILE trains one")
    free = free_port(port if port is not None else FIRST_PORT)
    if port not in (None, free):
        raise BadInput(f"port {port} is in use; --port {free} is free, and without --port one is found")
    token = secrets.token_urlsafe(24)
    with ExitStack() as stack, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, free))
        listening.listen()  # who asks before the server runs is answered when it does
        app = application(lab, token, free, stack)
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        query = f"?token={token}" + (f"&study={name}" if name else "")
        yield Live(f"http://{HOST}:{free}/{query}", lambda: server.run(sockets=[listening]))


def application(lab: Path, token: str, port: int, stack: ExitStack) -> Starlette:
    """Return the pages of a lab's studies; `stack` ends MLflow's own server, where one was asked for."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    links: dict[str, Mapping[str, str]] = {}

    def text(kind: str, content: str) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def check(request: Request) -> Response:
            host, origin = request.headers.get("host", ""), request.headers.get("origin")
            known = [f"{each}:{port}" for each in HOSTS]
            if host not in known or origin not in (None, f"http://{host}"):
                return PlainTextResponse("this page is for this machine only", 403)
            if not secrets.compare_digest(request.query_params.get("token", "").encode(), token.encode()):
                return PlainTextResponse(
                    "the address lacks its token: sweeplab dashboard prints it whole", 403
                )
            try:
                return await answer(request)
            except (BadInput, TrackingUnavailable) as error:
                return JSONResponse({"error": str(error)}, 400)

        return check

    async def page(request: Request) -> Response:
        own = (Path(__file__).parent / "live.html").read_text(encoding="utf-8")
        return text("text/html", own.replace("TOKEN", token))

    async def script(request: Request) -> Response:
        return text("text/javascript", (Path(__file__).parent / "live.js").read_text(encoding="utf-8"))

    async def plotly(request: Request) -> Response:
        from plotly.offline import get_plotlyjs

        return text("text/javascript", await run_in_threadpool(get_plotlyjs))

    async def studies(request: Request) -> Response:
        rows = [{"name": each, "is_run": StudyFolder(lab, each).is_run} for each in study_names(lab)]
        return JSONResponse(rows)

    async def events(request: Request) -> Response:
        follower = Follower(find_study(lab, request.query_params.get("study", "")))
        return StreamingResponse(_stream(follower, request), media_type="text/event-stream", headers=_HEADERS)

    async def order(request: Request) -> Response:
        given = json.loads(await request.body() or b"{}")
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
    routes = [Route(path, guarded(each)) for path, each in pages.items()]
    routes += [
        Route(path, guarded(each), methods=["POST"])
        for path, each in {"/order": order, "/mlflow": mlflow}.items()
    ]
    return Starlette(routes=routes)


async def _stream(follower: Follower, request: Request) -> AsyncIterator[str]:
    """Yield server-sent events: how the study stands, whenever that changes."""
    from starlette.concurrency import run_in_threadpool

    said = ""
    while not await request.is_disconnected():
        try:
            found = json.dumps(json_ready(await run_in_threadpool(follower.look)))
        except (BadInput, TrackingUnavailable) as error:  # such as of a study that is being removed
            found = json.dumps({"error": str(error)})
        yield f"data: {found}\n\n" if found != said else ": nothing new\n\n"
        said = found
        await asyncio.sleep(LOOK_SECONDS)
