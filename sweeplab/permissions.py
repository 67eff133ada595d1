"""What the user has allowed: addresses that are contacted, and files, that only a study file or a lab names.

Both may come from somebody else. An address is the user's own if the command line or the environment names it, or did
for an earlier run, which a file in the user's own folder remembers: nothing inside a study's folder or a lab can.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sweeplab.errors import BadInput, Problem
from sweeplab.files import PRIVATE, make_folder, read_bytes, unsafe, write_new
from sweeplab.formatting import without_password


class Kind(NamedTuple):
    """A kind of address: the place that names it, and the environment variable by which the user does."""

    place: str
    variable: str


TRACKING = Kind("track.uri", "MLFLOW_TRACKING_URI")
STORAGE = Kind("storage.url", "SWEEPLAB_STORAGE")
RAY = Kind("engine.address", "RAY_ADDRESS")
WANDB = Kind("wandb_project", "WANDB_BASE_URL")
# A parameter of libpq that chooses a schema; each study has its own.
_OPTIONS = re.compile(r"(?<=[?&])options=[^&]*&?")
# In the keys of a trial's system attributes: what Optuna unpickles, and the signature of one.
_PICKLED, _SIGNED = ":optimizer:", "signed:"
_named: set[str] = set()
_is_worker = False


def name_address(address: str) -> None:
    """Record that the command line, or the caller from Python, has named an address."""
    _named.add(place_of(address))


def work_for_parent() -> None:
    """Record that this process is a worker: whoever started it was allowed what it reaches."""
    global _is_worker
    _is_worker = True


def place_of(address: str) -> str:
    """Return an address without its password, as it is shown, compared and remembered."""
    return _OPTIONS.sub("", without_password(address)).replace("+psycopg:", ":").rstrip("/?&")


def is_given(kind: Kind, address: str) -> bool:
    """Return whether the command line or the environment of this process names an address."""
    addresses, variable = {*_named}, os.environ.get(kind.variable)
    if variable:
        addresses.add(place_of(variable))
    return place_of(address) in addresses


def mirror_address() -> str:
    """Return the address of Weights & Biases, as the environment or the login names it; empty if nothing is sent."""
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared") or not find_spec(
        "wandb"
    ):
        return ""
    if address := os.environ.get(WANDB.variable):
        return address
    from configparser import ConfigParser
    from configparser import Error as ConfigError

    settings = ConfigParser(interpolation=None)
    with suppress(ValueError, ConfigError):
        settings.read(
            Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
            / "settings"
        )
    return settings.get("default", "base_url", fallback="https://api.wandb.ai")


def check_address(kind: Kind, address: str) -> None:
    """Make sure that the user has named an address, before anything is sent there.

    Raises:
        BadInput: only a file names it; says how to name it.
    """
    place = place_of(address)
    if _is_ambiguous(address) and address != os.environ.get(kind.variable):
        what = f"{kind.place} is an address that can be read as two: it was not contacted"
        raise BadInput(Problem(what, "%2F for /, %23 for #, %3F for ?, %40 for @"))
    if is_given(kind, address) or is_allowed(place):
        return
    what = f"{kind.place} names {place}, which you have not: it was not contacted"
    options = {
        STORAGE: "",
        WANDB: f", or -o {kind.place}=PROJECT for a run, or WANDB_MODE=offline",
    }
    option = options.get(kind, f", or -o {kind.place}={place} for a run")
    raise BadInput(Problem(what, f"{kind.variable}={place}{option}"))


def _is_ambiguous(address: str) -> bool:
    if not address.startswith(("postgresql", "mysql", "mssql")):
        return False
    from sqlalchemy import make_url  # slow to import
    from sqlalchemy.exc import ArgumentError

    try:
        driver, shown = make_url(address), make_url(without_password(address))
    except (ArgumentError, ValueError):
        return True
    return (driver.host, driver.port) != (shown.host, shown.port)


# ------------------------------------------------------------------ what is remembered


def _folder() -> Path | None:
    from platformdirs import user_state_path

    folder = user_state_path("sweeplab")
    return folder if folder.is_absolute() and _is_safe(folder) else None


@cache
def _is_safe(folder: Path) -> bool:
    why = unsafe(folder, "allowed")
    if why:
        print(f"{folder} is not read, so that nothing is allowed by it: {why}", file=sys.stderr)
    return not why


def _file_of(parts: Iterable[str]) -> Path | None:
    folder = _folder()
    return folder and folder / "allowed" / hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_allowed(*parts: str) -> bool:
    """Return whether these parts, together, were allowed earlier, or this process is a worker."""
    file = _file_of(parts)
    return _is_worker or (file is not None and file.exists())


def allow(*parts: str) -> None:
    """Remember that the user allows these parts together; removing the file forgets it.

    A worker remembers nothing: its user has allowed them where the study was started.
    """
    file = _file_of(parts)
    if file is None or is_allowed(*parts):
        return
    with suppress(OSError):  # a home that cannot be written: the user is asked again
        make_folder(file.parent, PRIVATE)
        write_new(file, "\n".join([*parts, ""]).encode())


@cache
def _key() -> bytes:
    """Return the user's key, for signatures; one of this process alone where it cannot be kept."""
    folder, new = _folder(), secrets.token_bytes(32)
    if folder is None:
        return new
    file = folder / "key"
    with suppress(OSError):
        make_folder(folder, PRIVATE)
        write_new(file, new, 0o600)
        known = read_bytes(file)
        if len(known) == len(new):  # else it is damaged
            return known
    return new


def signed(trial_id: int, key: str, value: Any) -> dict[str, Any]:
    """Return a system attribute of a trial, with the user's signature if Optuna will unpickle it: a pickle is code."""
    if _PICKLED not in key:
        return {key: value}
    return {key: value, f"{_SIGNED}{key}": _signature(trial_id, key, value)}


def has_pickles(attributes: Iterable[str]) -> bool:
    """Return whether one of a trial's system attributes, given by their names, is a pickle."""
    return any(_PICKLED in name for name in attributes)


def without_unsigned(trial_id: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's system attributes without pickles that this user has not signed.

    One is the state of CMA-ES, which the sampler computes again from the trials: a generation with every new trial.
    """
    return {
        key: value
        for key, value in attributes.items()
        if _PICKLED not in key
        or attributes.get(f"{_SIGNED}{key}") == _signature(trial_id, key, value)
    }


def _signature(trial_id: int, key: str, value: Any) -> str:
    return hmac.new(_key(), f"{trial_id}\0{key}\0{value}".encode(), "sha256").hexdigest()
