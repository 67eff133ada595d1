"""Pages for the person who serves them: on this machine alone, at an address that nobody else can name.

The first part of the path is a secret, and nothing outside of it is answered. A cookie would be sent to every port of
this machine, so also to a server of another user; a browser sends a path only to the server that it belongs to.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sweeplab.errors import BadInput

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
_REFUSED = """<!DOCTYPE html><title>sweeplab</title>
<p>This page is for its owner alone, at the whole address that sweeplab ui or sweeplab dashboard prints.
"""


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on a port of this machine, by default a free one.

    A browser keeps what the pages of an earlier server at the same port have left, such as a service worker, and
    another user may have been that server: nobody knows a free port in advance. Requests wait in the socket until a
    server answers them.

    Raises:
        BadInput: the port is taken.
    """
    listening = socket.socket()
    # A port counts as free although old connections are still in TIME_WAIT.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port or 0))
        listening.listen()
    except OSError as error:
        listening.close()
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise BadInput(f"port {port} {what}; without --port a free one is found") from error
    return listening


def private_address(listening: socket.socket) -> str:
    """Return a new address of pages: `http://127.0.0.1:PORT/SECRET`."""
    return f"http://{HOST}:{listening.getsockname()[1]}/{secrets.token_urlsafe(24)}"


class Private:
    """Passes on to an application what is asked below an address, by paths relative to it, and refuses all else.

    Host and Origin are checked too: another site in the browser that has learned the address is refused.
    """

    def __init__(self, app: ASGIApp, address: str) -> None:
        place = urlsplit(address)
        self._app, self._secret = app, place.path.strip("/")
        self._hosts = [f"{host}:{place.port}" for host in HOSTS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import HTMLResponse, RedirectResponse

        async def send_private(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Referrer-Policy"] = "no-referrer"
            await send(message)

        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host"), headers.get("origin")
        secret, slash, path = scope["path"].removeprefix("/").partition("/")
        is_owner = secrets.compare_digest(secret.encode(), self._secret.encode())
        app: ASGIApp = self._app
        is_worker = headers.get("service-worker") == "script"  # it would answer whoever opens this port later
        if is_worker or not is_owner or host not in self._hosts or origin not in (None, f"http://{host}"):
            app = HTMLResponse(_REFUSED, 403)
        elif not slash:
            # Earlier servers at the port may have left something in the browser.
            app = RedirectResponse(f"/{self._secret}/", headers={"Clear-Site-Data": '"storage"'})
        inner = {name: value for name, value in scope.items() if name != "raw_path"}
        await app({**inner, "path": f"/{path}"}, receive, send_private)


@contextmanager
def leading_to(url: str, folder: Path) -> Iterator[str]:
    """Yield the address of a file that leads a browser to a page, and that only its owner can read.

    Everybody can read the arguments of a browser's process. The file is in `folder`, if that can be written: some
    browsers have a temporary folder of their own.
    """
    place = folder if os.access(folder, os.W_OK) else None
    with tempfile.NamedTemporaryFile(
        "w", prefix="open-", suffix=".html", dir=place, encoding="utf-8"
    ) as file:
        file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(url)}">\n')
        file.flush()
        yield Path(file.name).absolute().as_uri()
