"""`sweeplab mcp`, by the client of the protocol's own SDK."""

import json
import os
import sys
from pathlib import Path

import anyio
import pytest
from cli.conftest import STUDY
from law_tables import TABLE

from sweeplab.cli.mcp import TOOLS, Reach, Tools
from sweeplab.errors import BadInput


@pytest.fixture
def tools(folder):
    """Return the tools as they are served in a folder with some files, beside one that is out of reach."""
    inside, outside = folder / "inside", folder / "outside"
    inside.mkdir()
    outside.mkdir()
    data = "data: {corpus: python-docs, tokenizer: char}\n"
    for name, text in {
        "tiny": STUDY,
        "typo": STUDY.replace("n_layer", "n_layr"),
        "reads": f"name: reads\ndata: {{path: {outside / 'secret.txt'}}}\n",
        "climbs": "name: climbs\ndata: {path: ../outside/secret.txt}\n",
        "starts": f"name: starts\n{data}init_from: {outside}\n",
        "linked": "name: linked\ndata: {path: linked.txt}\n",
        "code": f"name: code\n{data}plugins: [mine.py]\n",
        "sends": f"name: sends\n{data}track: {{uri: 'http://192.0.2.1:5000'}}\n",
    }.items():
        (inside / f"{name}.yaml").write_text(text)
    (inside / "mine.py").write_text("raise SystemExit('this ran')\n")
    (outside / "secret.txt").write_text("name,number\nAda,1\n" * 99)
    (outside / "runs.csv").write_text(TABLE)
    (outside / "tiny.yaml").write_text(STUDY)
    links = {
        "linked.txt": "secret.txt",
        "linked.csv": "runs.csv",
        "linked_study.yaml": "tiny.yaml",
    }
    for name, target in links.items():
        (inside / name).symlink_to(outside / target)
    os.chdir(inside)
    return Tools(Reach(inside / "lab", [inside.resolve()]))


def test_without_the_extra_it_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    said = cli("mcp")
    line = "error: sweeplab mcp needs the SDK of the protocol: pip install 'sweeplab[mcp]'\n"
    assert (said.code, said.out, said.err) == (2, "", line)
    monkeypatch.undo()
    pytest.importorskip("mcp", reason="mcp, an extra, is not installed")
    assert cli("mcp", "nowhere.csv").err == "error: nowhere.csv: no such file or folder\n"


REFUSED = [
    *(
        ("plan", {"file": f"{name}.yaml"}, "out of reach")
        for name in ("reads", "climbs", "starts", "linked")
    ),
    *(
        ("run", {"file": name}, "out of reach")
        for name in ("../outside/tiny.yaml", "/etc/passwd", "linked_study.yaml")
    ),
    *(
        ("laws", {"source": name}, "out of reach")
        for name in ("linked.csv", "small,../outside/runs.csv")
    ),
    ("show", {"name": "../../outside"}, "out of reach"),
    ("show", {"name": "a\0b"}, "no path"),
    ("run", {"file": "code.yaml"}, "is code that would run here"),
    ("run", {"file": "sends.yaml"}, "it was not contacted"),
    *(
        ("run", {"file": "tiny.yaml", option: [f"{name}{value}"]}, f"does not set {name}")
        for option, name, value in (
            ("override", "data.path", "=notes.txt"),
            ("override", "--engine ray", ""),
            ("override", "fixed", "={wandb_project: a}"),
            ("override", "WandB-project", "=a"),
            ("grid", "wandb_project", "=a,b"),
            ("search", "--allow-plugins", ""),
        )
    ),
    ("plan", {"file": "typo.yaml"}, "did you mean 'n_layer'?"),
    ("run", {"file": "nothing"}, "no study file"),
    ("plan", {}, "plan: file: "),
    ("plan", {"file": 3}, "plan: file: "),
    ("show", {"nam": "tiny"}, "did you mean 'name'?"),
    ("show", {"lab": "/"}, "show: lab: "),
    ("shell", {"command": "ls"}, "no tool 'shell'"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), REFUSED)
def test_what_a_program_may_not_name_is_refused_in_one_line(tools, name, arguments, words):
    with pytest.raises(BadInput) as refused:
        tools.call(name, arguments)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert "Ada" not in str(refused.value) and not Path("lab", "studies").exists()


def test_a_tool_returns_what_its_command_prints(cli, json_of, finished, folder):
    tools = Tools(Reach(finished.lab, [folder.resolve(), finished.lab.resolve()]))
    for name in ("show", "best"):
        assert tools.call(name, {"name": "tiny"}) == json_of(
            "study", name, "tiny", "--lab", finished.lab
        )
    said = cli("laws", "predict", "tiny", "--at", "n_embd=32", "--json", "--lab", finished.lab)
    assert (
        tools.call("predict", {"source": "tiny", "at": "n_embd=32"}).keys()
        == json.loads(said.out).keys()
    )


@pytest.mark.slow
def test_an_agent_plans_runs_and_reads_a_study(folder):
    mcp = pytest.importorskip("mcp", reason="mcp, an extra, is not installed")
    (folder / "tiny.yaml").write_text(STUDY)
    (folder / "typo.yaml").write_text(STUDY.replace("n_layer", "n_layr"))
    noise = []

    async def hear(message):
        noise.append(message)

    async def main():
        program = mcp.StdioServerParameters(
            command=sys.executable,
            args=["-m", "sweeplab", "mcp"],
            cwd=folder,
            env=dict(os.environ),
        )
        # By default the SDK writes to what was standard error when it was imported, which an earlier test may close.
        talk = mcp.stdio_client(program, errlog=sys.__stderr__)
        async with mcp.Client(talk, message_handler=hear) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [*TOOLS]
            assert all(tool.description for tool in listed)
            assert [tool.name for tool in listed if not tool.input_schema["properties"]] == [
                "list"
            ]

            async def call(tool, /, **arguments):
                answer = await client.call_tool(tool, arguments)
                assert not answer.is_error, answer.content
                assert json.loads(answer.content[0].text) == answer.structured_content
                return answer.structured_content

            async def refused(tool, /, **arguments):
                answer = await client.call_tool(tool, arguments)
                assert answer.is_error and len(answer.content) == 1
                return answer.content[0].text

            planned = await call("plan", file="tiny.yaml")
            assert [cell["cell"] for cell in planned["cells"]] == ["n_embd=8", "n_embd=16"]
            assert "out of reach" in await refused("plan", file="/etc/passwd")
            typo = await refused("run", file="typo.yaml")
            assert (
                typo.startswith(f"{Path('typo.yaml')}:3:") and "did you mean 'n_layer'?" in typo
            )
            started = await call("run", file="tiny", override=["max_iters=30"], name="short")
            assert started["study"] == "short" and started["watch"].startswith(
                "sweeplab watch short"
            )
            while (shown := await call("show", name="short"))["state"] != "finished":
                assert shown["state"] in ("running", "ending")
                await anyio.sleep(1)
            assert shown["best"] and [cell["complete"] for cell in shown["cells"]] == [2, 2]
            best = await call("best", name="short")
            assert best["values"]["max_iters"] == 30 and Path(best["runs"][0]).is_dir()
            assert "is not running" in await refused("stop", name="short")
            added = await call(
                "enqueue", name="short", values=["learning_rate=2e-3", "n_embd=8"]
            )
            assert added["trials"] == [{"cell": "n_embd=8", "trial": 2}]
            assert Path((await call("report", name="short"))["report"]).is_file()
            more = await call("extend", name="short", trials_per_cell="3")
            assert more["undo"] == ["sweeplab extend short --trials-per-cell 2"]
            (short,) = await call("list")
            assert (short["done"], short["planned"]) == (4, 6), "nothing was trained"

    anyio.run(main)
    assert not noise, "something else than the protocol was printed"
