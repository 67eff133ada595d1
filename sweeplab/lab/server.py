"""The lab's own PostgreSQL server, for users without one: its data, its log and its password lie in the lab.

Its programs are the system's. PostgreSQL refuses to run as root, so root runs it under another account, `postgres` or
`nobody`.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sweeplab.errors import BadInput, Problem
from sweeplab.files import (
    GrowingFile,
    machine,
    make_folder,
    process_space,
    read_bytes,
    write_whole,
)
from sweeplab.formatting import without_passwords
from sweeplab.records.folders import (
    SERVICE,
    allow_service,
    command_in,
    read_service,
    service_file,
    service_url,
)
from sweeplab.records.runs import Inside, read_json, typed, write_json

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "*")
ACCOUNTS = ("postgres", "nobody")  # under which root runs it
PROGRAMS = ("initdb", "postgres", "pg_ctl", "pg_dump", "pg_restore")
INSTALL = "apt install postgresql, or conda install -c conda-forge postgresql"
NEEDS_DRIVER = "PostgreSQL needs psycopg: pip install 'sweeplab[postgres]'"
RECOVERY_SECONDS = 600  # to recover after a crash of the machine
SETTINGS = """\
listen_addresses = '{listen}'
port = {port}
unix_socket_directories = ''
max_connections = 2500 # each worker holds two, idle most of the time
dynamic_shared_memory_type = mmap # some systems clear a user's /dev/shm at logout
log_timezone = 'UTC'
ssl = {ssl}
ssl_cert_file = '../server.crt'
ssl_key_file = '../server.key'
"""


@contextmanager
def connected(url: str | URL, what: str, cure: str = "") -> Iterator[Connection]:
    """Connect to a PostgreSQL database for one transaction.

    Raises:
        BadInput: it does not answer, or its driver is missing; says what to do.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = create_engine(url)
    except ModuleNotFoundError:
        raise BadInput(NEEDS_DRIVER) from None
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        why = f"{what} does not answer: {reason_of(error)}"
        raise BadInput(f"{why}; {cure}" if cure else why) from error
    finally:
        engine.dispose()


def reason_of(error: Exception) -> str:
    """Return in one line why a database does not answer."""
    message = without_passwords(str(error.__cause__ or error).strip().partition("\n")[0])
    if "Connection refused" in message:
        message += " (`sweeplab storage start` starts the lab's own)"
    return message


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def program_folders() -> Iterator[Path]:
    """Yield the folders that have PostgreSQL's programs: on PATH, and where Debian puts them."""
    places = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda at: -float(at.parent.name)
    )
    on_path = shutil.which("initdb")
    if on_path:
        places.insert(0, Path(on_path).resolve().parent)
    yield from dict.fromkeys(
        at for at in places if all((at / each).exists() for each in PROGRAMS)
    )


@dataclass(frozen=True)
class ServerStart:
    """The last start of a server (started.json): its machine, the machine's boot and process ids, and its address."""

    host: str
    boot: str
    space: str
    listen: str
    port: int

    @classmethod
    def here(cls, listen: str, port: int) -> ServerStart:
        """Return a start on this machine."""
        _, space = process_space()
        return cls(socket.gethostname(), machine(), space, listen, port)


@dataclass(frozen=True)
class Server:
    """The server of one lab, in its folder `postgres`, which only the server's account can enter."""

    lab: Path

    data = Inside("data")  # PostgreSQL's data folder
    log = Inside("log")
    _pid_file = Inside("data/postmaster.pid")  # exists from the start to a clean stop
    _start_file = Inside("started.json")
    _key = Inside("server.key")

    @property
    def service(self) -> Path:
        """Return the libpq service file: how to connect, with the password."""
        return service_file(self.lab)

    @property
    def path(self) -> Path:
        """Return the folder of all of the server's files."""
        return self.service.parent

    @property
    def exists(self) -> bool:
        """Return whether the lab has a server, running or not."""
        return self.data.exists()

    @property
    def _last_start(self) -> ServerStart | None:
        if not self._start_file.exists():
            return None
        cure = "remove it: the next start writes it again"
        return read_json(self._start_file, cure, lambda record: typed(ServerStart, record))

    @property
    def listens_on(self) -> str:
        """Return the address on which it listens, or listened last."""
        # A file of the lab alone names no host to look up, nor opens a port to others.
        start = self._last_start if self.exists else None
        return start.listen if start else LOOPBACK

    @property
    def is_running(self) -> bool:
        """Return whether it runs on this machine: whether its process works in its data folder."""
        import psutil

        with suppress(OSError, ValueError, psutil.Error):
            pid = int(read_bytes(self._pid_file).decode().partition("\n")[0])
            return Path(psutil.Process(pid).cwd()) == self.data.resolve()
        return False

    @property
    def elsewhere(self) -> str | None:
        """Return the other machine or container on which it was started and not stopped, else None."""
        then, now = self._last_start, ServerStart.here("", 0)
        if then is None or not self._pid_file.exists():
            return None
        if then.host != now.host:
            return then.host
        if then.boot == now.boot and then.space != now.space:
            return f"another container of {now.host}"
        return None

    def command(self, verb: str) -> str:
        """Write a `sweeplab storage` command as a user would type it for this lab."""
        return command_in(self.lab, "storage", verb)

    def start(
        self, host: str | None = None, port: int | None = None, allow_data: bool = False
    ) -> bool:
        """Start the server, and create it the first time; return False if it was running already.

        It listens on its last address, else on loopback. Beyond loopback it accepts only TLS, with a certificate of its
        own. After a crash it recovers by itself. Data that the user has not created, whose settings may run
        programs, are started only with `allow_data`.

        Raises:
            BadInput: PostgreSQL is missing or cannot start, or runs elsewhere or on another address; says what to do.
        """
        from filelock import FileLock

        if not find_spec("psycopg"):
            raise BadInput(NEEDS_DRIVER)
        self._refuse_elsewhere()
        try:
            make_folder(self.path, 0o700)
            # PostgreSQL and openssl would write through links, and wait for pipes.
            for file in (self.path, *self.path.iterdir()):
                # Data of the user's own may lie on another disk.
                if file.is_symlink() and file != self.data:
                    raise BadInput(
                        Problem(
                            f"{file} is a link to {file.readlink()}", "a folder without links"
                        )
                    )
                if not (file.is_file() or file.is_dir()):
                    raise BadInput(Problem("is no file", file=file))
            with FileLock(self.path / "lock"):
                if self.exists and not allow_data:
                    service_url(self.service)
                # Not before the data are known as the user's: to look up a host asks others.
                host = host or self.listens_on
                then = self._last_start
                if then is None or not self.is_running:
                    self._start(host, port or _free_port(then.port if then else 0))
                    return True
        except OSError as error:
            raise BadInput(f"cannot write {self.path}: {error.strerror}") from error
        if (host, port or then.port) != (then.listen, then.port):
            runs = f"the lab's storage is running on {then.listen}, port {then.port}"
            raise BadInput(f"{runs}; to change that, stop it first: {self.command('stop')}")
        return False

    def _refuse_elsewhere(self) -> None:
        there = self.elsewhere
        if there:
            gone = f"if that is gone for good: rm {shlex.quote(str(self._pid_file))}"
            raise BadInput(f"the lab's storage runs on {there}; stop it there, or {gone}")

    def _start(self, host: str, port: int) -> None:
        account = self._account()
        programs, is_open = self._programs(), not is_loopback(host)
        self._check_account(account, programs)
        if not self.exists:
            self._make(programs, account)
        if is_open and not self._key.exists():
            self._certify(account)
        now, then = ServerStart.here(host, port), self._last_start
        # Its process id may belong to another process since.
        if then is None or then.boot != now.boot:
            self._pid_file.unlink(missing_ok=True)
        write_json(self._start_file, now)
        self._write_service(host, port)
        listen = "*" if host in EVERYWHERE else host
        kind, ssl = ("hostssl", "on") if is_open else ("host", "off")
        settings = SETTINGS.format(listen=listen, port=port, ssl=ssl)
        rule = f"{kind} all all all scram-sha-256\n"
        for name, text in (("postgresql.conf", settings), ("pg_hba.conf", rule)):
            write_whole(self.data / name, text.encode())
            _give(self.data / name, account)
        before = self.log.stat().st_size if self.log.exists() else 0
        # Relative to its working folder: pg_ctl starts a shell, which would read the lab's path as code.
        words = (
            "-D",
            self.data.name,
            "-l",
            self.log.name,
            "-t",
            RECOVERY_SECONDS,
            "start",
        )
        if _run(account, programs / "pg_ctl", *words).returncode == 0:
            return
        self._start_file.unlink()
        if then:  # what failed is not kept
            write_json(self._start_file, then)
        output = GrowingFile(self.log, before).new_lines().decode(errors="replace")
        why = re.search(r"(?:LOG|FATAL|PANIC): +(could not .*|(?<=FATAL:  ).*)", output)
        what = why[1] if why else "see its log"
        raise BadInput(f"the lab's storage does not start: {what} ({self.log})")

    def stop(self) -> bool:
        """Stop the server cleanly; return whether it was running.

        Raises:
            BadInput: it runs on another machine, or does not stop.
        """
        self._refuse_elsewhere()
        if not self.is_running:
            return False
        words = ("-D", self.data.name, "-t", RECOVERY_SECONDS, "stop")
        if _run(self._account(), self._programs() / "pg_ctl", *words).returncode:
            raise BadInput(f"the lab's storage does not stop: {self.log} says why")
        return True

    def check(self) -> str:
        """Return the version of the server.

        Raises:
            BadInput: it does not answer.
        """
        from sqlalchemy import text

        start = self.command("start")
        if not self.exists:
            raise BadInput(f"the lab has no server of its own; {start} creates one")
        if self.elsewhere:
            start += f" on {self.elsewhere}"
        with connected(service_url(self.service), "the lab's storage", start) as connection:
            return str(connection.scalar(text("SHOW server_version"))).partition(" ")[0]

    def backup(self, file: Path) -> str:
        """Write a consistent dump of the database to one file; return the command that restores it.

        Raises:
            BadInput: the server does not answer, or the file cannot be written.
        """
        self.check()
        programs, service = self._programs(), f"service={SERVICE}"
        environment = os.environ | {"PGSERVICEFILE": str(self.service)}
        try:
            make_folder(file.parent)
            with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
                dump = Path(folder, "dump")
                words = ("-Fc", "-f", dump, "-d", service)
                dumped = _run({"env": environment}, programs / "pg_dump", *words)
                if dumped.returncode:
                    raise BadInput(
                        f"no backup was written: {dumped.stderr.strip().splitlines()[-1]}"
                    )
                dump.replace(file)
        except OSError as error:
            raise BadInput(f"cannot write {file}: {error.strerror}") from error
        restore = ("--clean", "--if-exists", "-d", service, str(file))
        return shlex.join(
            ["env", f"PGSERVICEFILE={self.service}", str(programs / "pg_restore"), *restore]
        )

    @property
    def address(self) -> str:
        """Return its host and port."""
        url = read_service(self.service)
        return f"{url.host}:{url.port}"

    def _programs(self) -> Path:
        """Find the folder of PostgreSQL's programs, of the version that wrote the data if there are data.

        Raises:
            BadInput: they are not installed.
        """
        written = self.data / "PG_VERSION"
        version = which = ""
        if written.exists():
            version = read_bytes(written).decode().strip()
            which = f" {version}, which wrote the lab's data,"
        for folder in program_folders():
            answer = _run({}, folder / "postgres", "--version").stdout
            if not version or f" {version}." in answer:
                return folder
        raise BadInput(f"PostgreSQL{which} is not installed: {INSTALL}")

    def _account(self) -> dict[str, Any]:
        """Describe the account of its programs by arguments of subprocess: the data's owner, and never root."""
        if os.getuid() != 0:
            return {"cwd": self.path}
        owner = self.path.stat()
        uid, gid = owner.st_uid, owner.st_gid
        for name in ACCOUNTS:
            with suppress(KeyError):
                if uid == 0:
                    uid, gid = pwd.getpwnam(name)[2:4]
        if uid == 0:
            raise BadInput(
                "PostgreSQL does not run as root, and there is no account postgres or nobody"
            )
        return {"user": uid, "group": gid, "extra_groups": [], "cwd": self.path}

    def _check_account(self, account: Mapping[str, Any], programs: Path) -> None:
        """Give the folder to the account, and refuse if the account cannot reach it."""
        if "user" not in account:
            return
        _give(self.path, account)
        tests = ["-w", str(self.path), "-a", "-x", str(programs / "postgres")]
        if _run({**account, "cwd": "/"}, "/usr/bin/test", *tests).returncode:
            who = pwd.getpwuid(account["user"]).pw_name
            what = f"PostgreSQL does not run as root, and {who} cannot reach {self.path} or {programs}"
            raise BadInput(
                f"{what}: run it as another user, or give a --lab that every user may enter"
            )

    def _make(self, programs: Path, account: Mapping[str, Any]) -> None:
        """Create the data and a password, completely or not at all."""
        new, word = self.path / "data.new", self.path / "word"
        shutil.rmtree(new, ignore_errors=True)
        # Somebody else may have put them there, and know the key.
        for file in ("server.key", "server.crt"):
            (self.path / file).unlink(missing_ok=True)
        write_whole(word, secrets.token_urlsafe(24).encode(), mode=0o600)
        _give(word, account)
        words = (
            "-U",
            SERVICE,
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C",
            f"--pwfile={word.name}",
        )
        made = _run(account, programs / "initdb", "-D", new.name, *words)
        if made.returncode:
            raise BadInput(
                f"initdb failed in {self.path}: {made.stderr.strip().splitlines()[-1]}"
            )
        self._write_service(LOOPBACK, 0, read_bytes(word).decode())
        word.unlink()
        new.rename(self.data)

    def _write_service(self, host: str, port: int, password: str | None = None) -> None:
        password = password or read_service(self.service).password
        reached = _outward() if host in EVERYWHERE else host
        lines = [
            f"[{SERVICE}]",
            f"host={reached}",
            f"port={port}",
            f"user={SERVICE}",
            f"password={password}",
            "dbname=postgres",
        ]
        if not is_loopback(host):
            lines += ["sslmode=verify-ca", f"sslrootcert={self.path / 'server.crt'}"]
        write_whole(self.service, "\n".join([*lines, ""]).encode(), mode=0o600)
        allow_service(self.service)

    def _certify(self, account: Mapping[str, Any]) -> None:
        words = (
            "req",
            "-x509",
            "-newkey",
            "rsa:3072",
            "-nodes",
            "-days",
            "7300",
            "-subj",
            "/CN=sweeplab",
        )
        try:
            made = _run(account, "openssl", *words, "-keyout", "new.key", "-out", "server.crt")
        except FileNotFoundError:
            raise BadInput("a certificate needs openssl: apt install openssl") from None
        if made.returncode:
            raise BadInput(
                f"openssl created no certificate: {made.stderr.strip().splitlines()[-1]}"
            )
        (self.path / "new.key").rename(self._key)


def _run(settings: Mapping[str, Any], *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program detached from the terminal and its Ctrl-C; only its account can read the files that it writes."""
    return subprocess.run(
        [*map(str, words)],
        start_new_session=True,
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )


def _give(path: Path, account: Mapping[str, Any]) -> None:
    if "user" in account:
        os.chown(path, account["user"], account["group"])


def _free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else another."""
    try:
        free = socket.create_server((LOOPBACK, wanted))
    except OSError:
        free = socket.create_server((LOOPBACK, 0))
    with free:
        return int(free.getsockname()[1])


def _outward() -> str:
    with socket.socket(type=socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect(("192.0.2.1", 9))  # a reserved address: nothing is sent
        return str(asked.getsockname()[0])
    return socket.gethostname()
