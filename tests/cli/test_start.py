"""How commands begin: what they import, and Ctrl-C before they have begun."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from terminal import captured


def hears():
    """Let this process hear Ctrl-C: a shell's background jobs ignore it, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imported", ["sweeplab.errors", "typer.main", "sweeplab.cli.study.manage"]
)
def test_ctrl_c_while_the_commands_are_imported_is_quiet(imported):
    command = [sys.executable, "-X", "importtime", "-m", "sweeplab", "study", "list"]
    for _ in range(20):
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, preexec_fn=hears, **streams) as process:
            seen = False
            for line in process.stderr:  # one for each module as its import ends
                if not seen and line.split("|")[-1].strip() == imported:
                    process.send_signal(signal.SIGINT)
                    seen = True
                assert "Traceback" not in line and "KeyboardInterrupt" not in line
        assert seen
        if process.returncode == 130:
            return
        # Beside other work the signal may come when the command has ended: it comes again.
        assert process.returncode in (0, -signal.SIGINT)
    pytest.fail("the signal never came while the commands were imported")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run tiny", "resume tiny", "confirm tiny", "watch tiny"])
def test_the_first_line_comes_before_anything_slow_is_imported(finished, command):
    words = [
        "-X",
        "importtime",
        "-m",
        "sweeplab",
        "study",
        *command.split(),
        "--lab",
        str(finished.lab),
    ]
    terminal, end = pty.openpty()
    with (
        subprocess.Popen([sys.executable, *words], stderr=end) as process,
        os.fdopen(terminal, "rb") as shown,
    ):
        imported = set()
        for line in map(bytes.decode, shown):
            if line.startswith("reading "):
                process.kill()
                break
            imported.add(line.split("|")[-1].strip())
        os.close(end)
    assert "typer" in imported and line.startswith("reading ")
    assert not imported & {"torch", "mlflow", "pandas", "sqlalchemy", "rich.console"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "slow"),
    [
        ("doctor tiny", {"torch", "sklearn"}),
        ("report tiny --page sweep", {"torch", "mlflow", "sklearn"}),
        ("watch tiny --log", {"torch", "mlflow", "optuna", "numpy", "pandas"}),
        ("hyperparameters", {"torch", "optuna", "mlflow", "numpy", "pandas"}),
    ],
)
def test_a_daily_command_imports_nothing_that_is_slow_and_not_needed(finished, command, slow):
    words = [
        *command.split(),
        *(["--lab", str(finished.lab)] if "hyper" not in command else []),
    ]
    code = f"import sys; sys.argv = ['sweeplab', *{words!r}]\nfrom sweeplab.cli import main\ntry: main()\n"
    code += f"finally: print(*sorted({slow!r} & {{*sys.modules}}), file=sys.stderr)"
    run = captured([sys.executable, "-c", code])
    assert (run.returncode, run.stderr.strip()) == (0, ""), run.stdout
