"""What is loaded as code, or believed, was written by this user: not where another one may have put it."""

import os
import shutil
import stat
import sys
import tempfile
from itertools import cycle
from pathlib import Path

import pytest
import strangers
from terminal import captured

pytestmark = pytest.mark.skipif(
    not strangers.IS_ANOTHER, reason="only root may become another user"
)

# Names before and after those of the folders of tests.
PREFIXES = cycle("az")
# A library that says when it is loaded, and a baseline, a tokenized text and a permission: a file each.
PLANT = """
import sys
from pathlib import Path
for name in sys.argv[1:]:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("planted")
"""
ASK = """
import sys
from sweeplab.files import cache_folder
from sweeplab.hyperparameters import Hyperparameters
from sweeplab.permissions import allow, is_allowed, signed
from sweeplab.train.program import program_file
values = Hyperparameters(model="transformer", device="cpu", n_layer=1, n_embd=8, n_head=2, vocab_size=32)
print(program_file(values, 1), cache_folder("inductor"), cache_folder(), sep="\\n")
print(is_allowed("plugin", "digest"), is_allowed("mine"))
allow("mine")
cache_folder()
"""


@pytest.fixture
def shared():
    """A folder in which everybody may write, and only its owner removes a file, as in /tmp."""
    folder = Path(tempfile.mkdtemp(prefix=next(PREFIXES)))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def ask(cache, home, **more):
    """Return what a process is told of its caches and permissions, and what it says on standard error."""
    variables = {
        "SWEEPLAB_CACHE": str(cache),
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        **more,
    }
    variables["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    ended = captured([sys.executable, "-c", ASK], env=variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


def by_another(*files):
    ended = strangers.python(PLANT, *files)
    assert ended.returncode == 0, ended.stderr


def test_an_own_cache_is_used_and_closed_to_others(tmp_path):
    (program, inductor, cache, _), said = ask(tmp_path / "cache", tmp_path)
    assert said == "" and cache == str(tmp_path / "cache")
    for folder in (Path(cache), Path(program).parent, Path(inductor)):
        assert folder.is_relative_to(cache) and stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("planted", ["folder", "part", "file", "open", "above"])
def test_a_cache_where_another_user_may_have_written_is_not_read(planted, shared, tmp_path):
    cache = shared / "cache"
    name = Path(ask(cache, tmp_path)[0][0]).name  # as anybody can compute it
    shutil.rmtree(cache)
    match planted:
        case "folder":
            by_another(cache / "programs" / name)
        case "part":
            cache.mkdir(mode=0o777)
            cache.chmod(0o777)
            by_another(cache / "programs" / name)
            cache.chmod(0o700)
        case "file":
            (cache / "programs").mkdir(parents=True)
            (cache / "programs").chmod(0o777)
            by_another(cache / "programs" / name)
            (cache / "programs").chmod(0o700)
        case "open":
            cache.mkdir()
            cache.chmod(0o775)
            os.chown(cache, -1, strangers.UID)
        case "above":
            shared.chmod(0o777)
            cache.mkdir(0o700)
    (program, _, others, _), said = ask(cache, tmp_path / "home")
    private = tmp_path / "home" / ".cache" / "sweeplab"
    assert Path(program) == private / "programs" / name and not Path(program).exists()
    assert Path(others) == private
    assert said.startswith(f"the cache {cache} is not read: ") and said.endswith(
        f"; {private} is used\n"
    )
    assert said.count("\n") == 1
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_where_the_usual_cache_is_another_s_too_a_new_one_is_used_and_removed(shared, tmp_path):
    by_another(
        shared / "cache" / "programs" / "x.so", shared / "sweeplab" / "programs" / "x.so"
    )
    (program, _, cache, _), said = ask(shared / "cache", tmp_path, XDG_CACHE_HOME=str(shared))
    assert Path(program).is_relative_to(cache) and not Path(cache).is_relative_to(shared)
    assert said.count("\n") == 1 and not Path(cache).exists()


def test_a_permission_that_another_user_may_have_written_allows_nothing(shared, tmp_path):
    from sweeplab.permissions import _file_of

    own = _file_of(("plugin", "digest"))
    state = shared / "sweeplab" / "allowed"
    by_another(state / own.name)
    (*_, allowed), said = ask(tmp_path / "cache", tmp_path, XDG_STATE_HOME=str(shared))
    assert allowed == "False False"
    assert said.startswith(f"{shared / 'sweeplab'} is not read") and said.count("\n") == 1
    assert [file.name for file in state.iterdir()] == [own.name]
    for _ in range(2):  # and in the user's own folder it is remembered
        (*_, allowed), said = ask(tmp_path / "cache", tmp_path)
    assert allowed == "False True" and said == ""
