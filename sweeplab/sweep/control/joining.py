"""One more worker on a study that another command runs."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable

from sweeplab.errors import BadInput
from sweeplab.lab.feed import Event
from sweeplab.lab.versions import differences, machine, versions
from sweeplab.records.folders import StudyFolder
from sweeplab.study.datasets import study_dataset
from sweeplab.study.plan import Plan
from sweeplab.study.plugins import check_imported
from sweeplab.study.resources import WorkerResources
from sweeplab.sweep.control.steering import is_running, open_store
from sweeplab.sweep.trials.store import Store
from sweeplab.sweep.work.engines import LocalEngine
from sweeplab.sweep.work.pool import WorkerPool

# How often to see whether the study is still run by somebody.
LOOK_SECONDS = 2.0


def work_along(
    folder: StudyFolder,
    force: bool,
    listen: Callable[[Event], None],
    interrupts: Callable[[], int],
    allow_plugins: bool = False,
) -> list[str]:
    """Keep a worker on a study until its run ends, and return what went wrong.

    Its runs lie in the study's folder like all others, and whoever runs the study brings them to tracking.
    `interrupts` counts how often the user asked to stop: once puts its runs away, twice ends it at once.

    Raises:
        BadInput: nobody runs the study, or it is run with other code or data, or on another machine.
    """
    store = open_store(folder, allow_plugins)
    check_imported(store.spec)
    _check(folder, store, force)
    plan = Plan.from_dict(json.loads(folder.plan_file.read_text(encoding="utf-8")))
    like = plan.workers[0]
    resources = WorkerResources(like.threads, None if like.gpu is None else 0)
    name = f"worker-{platform.node()}-{os.getpid()}"
    pool = WorkerPool(LocalEngine(folder, [resources], name, force), store, listen)
    times, looked = 0, time.monotonic()
    try:
        pool.start()
        while len(pool) or not (interrupts() or pool.failures or not is_running(folder, store.commands)):
            pool.listen(stopping=bool(interrupts()))
            store.poll_commands()
            if pool.is_wanted and not interrupts():
                pool.start()
            if interrupts() > times:
                times = interrupts()
                pool.stop() if times == 1 else pool.kill()
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                if not folder.is_run:
                    pool.stop()
    finally:
        pool.kill()
    return pool.failures


def _check(folder: StudyFolder, store: Store, force: bool) -> None:
    start = store.commands.state.start
    if not is_running(folder, store.commands):
        raise BadInput(f"study {folder.name} is not running; {folder.command('study resume')} runs it")
    if folder.storage_url.startswith("sqlite") and start.get("machine") != machine():
        # Write-ahead logs are shared memory: over a network the file would be destroyed.
        what = f"study {folder.name} is run on {start.get('host')}, and its storage is an SQLite file"
        raise BadInput(f"{what}, which only processes of one machine can share")
    spec = store.spec
    dataset = study_dataset(spec)
    different = differences(versions(dataset.token_digest), start.get("versions", {}))
    if different and not force:
        what = f"study {folder.name} is run with another version of {', '.join(different)}"
        raise BadInput(f"{what}; what it trains here could not be compared: --force does it all the same")
