"""Files: complete or not there, no larger than memory, no link or pipe followed, and what a full disk is told."""

import errno
import fcntl
import grp
import os
import platform
import sqlite3
import stat
import tempfile
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import pytest
import strangers

from sweeplab import files
from sweeplab.errors import BadInput
from sweeplab.files import (
    GrowingFile,
    database_url,
    full_disk,
    machine,
    make_folder,
    opened,
    read_bytes,
    read_only_uri,
    shipped,
    sync_folder,
    unsafe,
    write_new,
    write_whole,
)

LEFT = "a.txt.0123456789abcdef.tmp"


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_labs", set())
    monkeypatch.setenv(files.CACHE, str(tmp_path / "cache"))
    before = os.listdir("/dev/fd")  # noqa: PTH208 - no folder that Path may read
    yield make_folder(tmp_path / "lab")
    assert os.listdir("/dev/fd") == before, "whatever happens, no file stays open"  # noqa: PTH208


def names(folder):
    return {file.name for file in folder.iterdir()}


def test_a_file_is_written_whole_with_its_mode(lab):
    file = lab / "a.txt"
    write_whole(file, b"old", 0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_whole(file, [b"new ", memoryview(b"parts")])
    usual, new = lab / "usual", lab / "new"
    usual.touch()  # as the user's umask says
    assert write_new(new, b"") and not write_new(new, b"other") and new.read_bytes() == b""
    opened(lab / "open", "wb").close()
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (usual, file, new, lab / "open")]
    assert modes == [modes[0]] * 4
    for each in (usual, new, lab / "open"):
        each.unlink()
    assert file.read_bytes() == b"new parts"
    write_whole(file, (write_whole(file, b"meanwhile") or part for part in (b"the ", b"last")))
    assert file.read_bytes() == b"the last"

    def failing():
        yield b"half"
        assert {len(name) for name in names(lab)} == {len("a.txt"), len(LEFT)}, (
            "it would be known if it were left"
        )
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(file, failing())
    assert file.read_bytes() == b"the last" and names(lab) == {"a.txt"}


@pytest.mark.parametrize("write", [write_whole, write_new])
def test_what_is_put_in_place_is_on_the_disk_before(write, lab, monkeypatch):
    synced, sync = [], os.fsync

    def noting(descriptor):
        state = os.fstat(descriptor)
        synced.append(("folder" if stat.S_ISDIR(state.st_mode) else state.st_size, names(lab)))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write(lab / "a.txt", b"text")
    sync_folder(lab)
    (written, there), entries = synced
    assert written == 4 and "a.txt" not in there and entries == ("folder", {"a.txt"})


def test_a_temporary_file_that_another_process_took_for_a_dead_one_is_written_again(
    lab, monkeypatch
):
    lock, taken = fcntl.flock, []

    def first_taken(descriptor, how):
        if not taken:
            taken.append(descriptor)
            raise BlockingIOError
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", first_taken)
    write_whole(lab / "a.txt", b"whole")
    assert taken and (lab / "a.txt").read_bytes() == b"whole"


def test_files_that_a_user_copies_lie_in_the_package_or_beside_it():
    assert (shipped("studies") / "small.yaml").is_file() and (
        shipped("presets") / "table.yaml"
    ).is_file()


@pytest.mark.parametrize("write", [write_whole, write_new])
def test_what_a_killed_process_left_is_removed_and_nothing_else(write, lab):
    others = {f"b.{LEFT}", "a.txt.0123456789abcde.tmp", f"{LEFT}x"}
    for name in (*others, LEFT):
        (lab / name).touch()
    write(lab / "a.txt", b"text")
    assert names(lab) == {*others, "a.txt"}
    with (lab / LEFT).open("w") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)  # as a process does that is writing it
        write(lab / "a.txt", b"text")
        assert (lab / LEFT).exists()
    (lab / LEFT).unlink()
    (lab / LEFT).symlink_to(lab / f"b.{LEFT}")
    write(lab / "a.txt", b"text")
    assert names(lab) == {*others, "a.txt"}


def test_a_link_is_replaced_by_a_whole_file_and_followed_by_no_other(lab, tmp_path):
    other, link = tmp_path / "other", lab / "a.txt"
    other.write_text("the user's")
    for write in (lambda: opened(link, "ab"), lambda: opened(link, "wb")):
        link.symlink_to(other)
        with pytest.raises(BadInput, match="is a symbolic link, which is not followed"):
            write()
        link.unlink()
    link.symlink_to(other)
    assert read_bytes(link) == b"the user's"
    write_whole(link, b"own")
    assert not link.is_symlink() and other.read_text() == "the user's"


def test_no_link_leads_out_of_a_lab(lab, tmp_path):
    (lab / "out").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    files.keep_inside(lab)
    (tmp_path / "elsewhere").mkdir()
    for write in (
        lambda: write_whole(lab / "out" / "a", b""),
        lambda: write_new(lab / "out" / "a", b""),
        lambda: make_folder(lab / "out" / "b"),
        lambda: opened(lab / "out" / "a", "wb"),
    ):
        with pytest.raises(BadInput, match="a symbolic link leads out of"):
            write()
    assert not names(tmp_path / "elsewhere")
    (lab / "usual").mkdir()
    made = make_folder(lab / "inside" / "deep").stat().st_mode
    assert made == (lab / "usual").stat().st_mode and files.labs_in_use() == [lab]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_not_waited_for(kind, lab):
    place = lab / "a.db"
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case _:
            place = Path("/dev/null")
    for use in (read_bytes, database_url, read_only_uri):
        with pytest.raises(OSError):
            use(place)


@pytest.mark.parametrize("beside", ["wal", "shm", "journal"])
def test_a_pipe_beside_a_database_is_not_opened(beside, lab):
    os.mkfifo(lab / f"a.db-{beside}")
    for use in (database_url, read_only_uri):
        with pytest.raises(OSError, match="is no file"):
            use(lab / "a.db")


def test_a_file_is_read_from_a_byte_on_and_no_larger_than_memory(lab):
    file = lab / "a"
    file.write_bytes(b"0123")
    assert [read_bytes(file, start=at) for at in (0, 3, 4, 5)] == [b"0123", b"3", b"", b""]
    most = 256 << 20
    with file.open("r+b") as stream:
        stream.truncate(most + 1)  # with holes, it takes no room
        with pytest.raises(OSError, match="is larger than 256 MiB") as error:
            read_bytes(file)
        assert error.value.errno == errno.EFBIG
        assert (
            read_bytes(file, start=most) == b"\0"
            and len(read_bytes(file, is_large=True)) == most + 1
        )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        stream.truncate(memory // 2 + 1)
        with pytest.raises(OSError, match=f"is larger than {memory >> 21:,} MiB"):
            read_bytes(file, is_large=True)


def test_a_growing_file_gives_whole_lines_once(lab):
    growing = GrowingFile(lab / "a")
    assert growing.new_lines() == b""
    for added, whole in (
        ("one\ntw", b"one\n"),
        ("", b""),
        ("o\nthree\n", b"two\nthree\n"),
        ("end", b""),
    ):
        with growing.path.open("a") as stream:
            stream.write(added)
        assert growing.new_lines() == whole


@pytest.mark.parametrize("name", ["plain", "with space", "a?mode=rw#%20&é"])
def test_a_database_is_reached_by_any_path(name, lab):
    from sqlalchemy import create_engine, text

    file = make_folder(lab / name) / f"{name}.db"
    engine = create_engine(database_url(file))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE known (x INT)"))
    engine.dispose()
    with closing(sqlite3.connect(read_only_uri(file), uri=True)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("known",)]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("INSERT INTO known VALUES (1)")
    assert "immutable" not in read_only_uri(file)
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(read_only_uri(file.with_name("none")), uri=True)


@pytest.mark.skipif(not strangers.IS_ANOTHER, reason="only root may become another user")
def test_a_folder_is_safe_if_only_its_user_and_root_write_there(lab):
    place = lab / "own"
    place.mkdir()
    place.chmod(0o775)  # the group that has the user's name is no other
    (place / "file").touch()
    assert unsafe(place) == ""
    os.chown(place, -1, grp.getgrnam("www-data").gr_gid)
    unsafe.cache_clear()
    assert unsafe(place) == f"others may write {place}"
    os.chown(place, -1, os.getgid())
    (place / "file").chmod(0o666)
    unsafe.cache_clear()
    assert unsafe(place) == f"others may write {place / 'file'}"
    (place / "file").unlink()
    (place / "link").symlink_to("/nowhere")  # a link's mode lets everybody write
    unsafe.cache_clear()
    assert unsafe(place) == ""
    deep = make_folder(place / "part" / "deep") / "file"
    deep.touch()
    deep.chmod(0o666)
    unsafe.cache_clear()
    assert (unsafe(place), unsafe(place, "part")) == ("", f"others may write {deep}")
    os.chown(place / "link", strangers.UID, -1, follow_symlinks=False)
    unsafe.cache_clear()
    assert unsafe(place) == f"{place / 'link'} belongs to another user"


@pytest.mark.skipif(not strangers.IS_ANOTHER, reason="only root may become another user")
def test_a_user_s_own_folder_below_root_s_is_safe():
    program = """
import os, sys
from pathlib import Path
from sweeplab.files import unsafe
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
print(*map(unsafe, map(Path, sys.argv[2:])), sep="\\n")
"""

    def said(*places):
        return strangers.python(program, strangers.UID, *places, is_another=False).stdout

    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        own = Path(above, "own")
        own.mkdir()
        os.chown(own, strangers.UID, strangers.UID)
        assert said(own, own.parent) == "\n\n"
        os.chown(above, strangers.UID + 1, -1)
        assert said(own) == f"{above} belongs to another user\n"
        os.chown(above, 65534, -1)  # as a container shows who owns the machine's folders
        assert said(own) == "\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "", "/x/a"), "/x/a: the disk is full"),
        (OSError(errno.EDQUOT, ""), "LAB: your quota of the disk is used up"),
        (ValueError("(x) database or disk is full"), "LAB: the disk is full"),
        (OSError(errno.ENOSPC, "", "<stdout>"), None),
    ],
)
def test_of_a_full_disk_it_is_said_what_may_be_deleted(error, said, lab, monkeypatch):
    free = {lab: 1, lab.parent: 2, Path("/proc"): 0}
    usage = namedtuple("Usage", "total free")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda place: usage(9 * (free[place] > 0), free[place])
    )
    labs, trash = [lab.parent, lab, Path("/proc/x")], make_folder(lab / "trash")
    for how in ("__cause__", "__context__"):
        outer = RuntimeError()
        setattr(outer, how, error)
        spare = f"may be deleted: {trash}, {lab.parent / 'cache'}"
        assert full_disk(outer, labs) == (said and f"{said}; {spare}".replace("LAB", str(lab)))
    assert full_disk(error, labs[2:]) is None


def test_a_machine_is_known_by_its_boot_or_else_by_its_name(lab, monkeypatch):
    monkeypatch.setattr(files, "_BOOT", lab / "boot")
    assert machine() == platform.node()
    files._BOOT.write_text("id\n")
    assert machine() == "id"
