"""`sweeplab mcp`: commands as tools of the Model Context Protocol, for programs such as coding agents.

A program is no person: it names no file outside of what the person named, and allows no code and no address. Calls run
one after the other in a thread, so that the protocol answers while a command works.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, get_args

from sweeplab.cli import options
from sweeplab.cli.laws import is_file, names_in
from sweeplab.cli.laws.fit import fit
from sweeplab.cli.laws.predicting import predict
from sweeplab.cli.options import argument
from sweeplab.cli.printing import Answer, answer_of
from sweeplab.cli.report import report
from sweeplab.cli.study.plan import plan
from sweeplab.cli.study.run import enqueue, extend, pause, start_detached, stop
from sweeplab.cli.study.show import best, list_studies, show
from sweeplab.errors import BadInput, Problem, TrackingUnavailable, nearest
from sweeplab.formatting import json_ready
from sweeplab.hyperparameters import TABLE, canonical
from sweeplab.lab.listing import file_of, find_study, read_spec, study_source
from sweeplab.records.folders import lab_folder
from sweeplab.version import VERSION

# What such a program sets beside hyperparameters; elsewhere a setting may name a file, and so would allow it.
SETTABLE = ("budget", "confirm", "constraints", "objective", "pruner", "sampler", "seeds")
# The keys of a study file that name files.
_NAMING = ("data", "init_from", "plugins")


@dataclass(frozen=True)
class Reach:
    """A lab, and the resolved files and folders that may be read beside it."""

    lab: Path
    places: Sequence[Path]

    def check(self, text: str) -> None:
        """Refuse a file, a study, or several with commas between them, that leads out of the places, also by links."""
        for name in {text, *text.split(",")}:
            for path in (file_of(name), self.lab / "studies" / name):
                self._check_path(path, name)

    def check_study(self, text: str, values: Mapping[str, Any]) -> None:
        """Refuse a study that reads or contacts what no person has named, or that is changed so.

        `values` are the options of the command that reads it: name, override, grid, search.
        """
        from sweeplab import load_study
        from sweeplab.study.file.parse import file_text, parse
        from sweeplab.study.file.resolve import beside
        from sweeplab.study.problems import Problems
        from sweeplab.sweep.planning import check_reach

        for key in ("override", "grid", "search"):
            _check_settings(key, values[key] or ())
        file = study_source(text, self.lab)
        # Before anything that it names is opened.
        if not file.resolve().is_relative_to(self.lab.resolve()):
            content = file_text(file)
            document = parse(content, Problems(file))
            for key in _NAMING * isinstance(document, dict):
                for name in _texts(document.get(key)):
                    self._check_path(beside(file, name), name, file.resolve().parent)
        changes = options.overrides(values["override"], values["grid"], values["search"])
        check_reach(
            load_study(file, lab=self.lab, name=values["name"], overrides=changes).spec,
            self.lab,
        )

    def check_run(self, name: str) -> None:
        """Refuse a study of the lab that reads or contacts what no person has named."""
        from sweeplab.sweep.planning import check_reach

        check_reach(read_spec(find_study(self.lab, name)), self.lab)

    def _check_path(self, path: Path, name: str, *more: Path) -> None:
        try:
            target = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a NUL
            raise BadInput(f"{name!r} is no path: {error}") from None
        if not any(map(target.is_relative_to, (*self.places, *more))):
            what = (
                f"{name!r} is out of reach: a person names it where `sweeplab mcp` is started"
            )
            raise BadInput(Problem(what, ", ".join(map(str, self.places))))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value.values()])
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_settings(key: str, settings: Sequence[str]) -> None:
    for text in settings:
        name = text.partition("=")[0]
        is_row = canonical(name) in TABLE and canonical(name) != "wandb_project"
        if not is_row and (key != "override" or name.partition(".")[0] not in SETTABLE):
            allowed = ["hyperparameters"]
            if key == "override":
                allowed += SETTABLE
            raise BadInput(
                Problem(f"{key} {text}: a program does not set {name}", ", ".join(allowed))
            )


def run_detached(
    file: options.StudyFile,
    override: options.Overrides = None,
    grid: options.Grid = None,
    search: options.Search = None,
    name: options.Name = None,
    lab: options.Lab = None,
) -> Answer:
    """Start a study, or continue it, and return at once; `show` tells how far it is, `stop` ends it."""
    from sweeplab import load_study

    study = load_study(
        file, lab=lab, name=name, overrides=options.overrides(override, grid, search)
    )
    settings = {"override": override, "grid": grid, "search": search}
    words = [f"--{option}={text}" for option, texts in settings.items() for text in texts or ()]
    words += [f"--name={study.spec.name}"] if name is not None else []
    return start_detached(
        study, ["run", "--quiet", f"--lab={study.lab}", *words, "--", str(file)]
    )


def resume_detached(name: options.StudyName, lab: options.Lab = None) -> Answer:
    """Continue a study that is paused or that no process runs, and return at once."""
    from sweeplab import open_study
    from sweeplab.sweep import steering

    done = steering.resume(find_study(lab, name))
    if done:
        return answer_of(done)
    study = open_study(name, lab)
    return start_detached(study, ["resume", "--json", f"--lab={study.lab}", "--", name])


@dataclass(frozen=True)
class Tool:
    """A command that a program may call, and those of its arguments that it may give."""

    command: Callable[..., Any]
    arguments: tuple[str, ...]
    reads_only: bool = True


_OF_FILE = ("file", "override", "grid", "search", "name")
TOOLS = {
    "list": Tool(list_studies, ()),
    "plan": Tool(plan, _OF_FILE),
    "run": Tool(run_detached, _OF_FILE, reads_only=False),
    "show": Tool(show, ("name", "trial", "cell", "trials", "sort", "top")),
    "best": Tool(best, ("name", "cell", "trial")),
    "stop": Tool(stop, ("name",), reads_only=False),
    "pause": Tool(pause, ("name",), reads_only=False),
    "resume": Tool(resume_detached, ("name",), reads_only=False),
    "extend": Tool(extend, ("name", "trials_per_cell", "time", "widen"), reads_only=False),
    "enqueue": Tool(enqueue, ("name", "values"), reads_only=False),
    "predict": Tool(predict, ("source", "at", "count", "where")),
    "report": Tool(report, ("name", "page"), reads_only=False),
    "laws": Tool(fit, ("source", "columns", "count", "where", "law", "flops", "tuned")),
}


@dataclass(frozen=True)
class Tools:
    """The tools, over one lab and what a program may name beside it."""

    reach: Reach
    models: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import pydantic

        for name, tool in TOOLS.items():
            fields = dict[str, Any]()
            for key, (kind, info, default) in _options(tool).items():
                if key == "file":
                    kind, default = str, ...
                fields[key] = (kind, pydantic.Field(default, description=info.help))
            settings = pydantic.ConfigDict(extra="forbid", strict=True)
            self.models[name] = pydantic.create_model(name, __config__=settings, **fields)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command, and return what it prints with `--json`.

        Raises:
            BadInput: there is no such tool, an argument is wrong or out of reach, or the command refuses.
        """
        if name not in TOOLS:
            raise BadInput(Problem(f"no tool {name!r}", ", ".join(TOOLS), nearest(name, TOOLS)))
        tool, values = TOOLS[name], self._checked(name, arguments)
        # `extend` would train here; `resume` trains in a process of its own.
        for setting in {"as_json", "no_run"} & inspect.signature(
            tool.command
        ).parameters.keys():
            values[setting] = True
        with redirect_stdout(StringIO()) as printed:
            answer = tool.command(**values, lab=self.reach.lab)
        return json_ready(answer[0]) if answer else json.loads(printed.getvalue())

    def _checked(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        import pydantic

        model = self.models[name]
        try:
            values = dict(model.model_validate(dict(arguments)))
        except pydantic.ValidationError as error:
            first, known = error.errors()[0], ", ".join(model.model_fields)
            key = ".".join(map(str, first["loc"]))
            near = ""
            if first["type"] == "extra_forbidden":
                near = nearest(key, model.model_fields)
            raise BadInput(Problem(f"{name}: {key}: {first['msg']}", known, near)) from None
        for key, (_, info, _) in _options(TOOLS[name]).items():
            is_place = key == "source" or info.parser is not None
            if is_place and values[key] is not None:
                self.reach.check(values[key])
                if key != "source":
                    values[key] = info.parser(values[key])
        if "file" in values:
            self.reach.check_study(str(values["file"]), values)
        # Whose plan reads the study's data.
        elif name == "predict" and not is_file(values["source"]):
            for study in names_in(values["source"]):
                self.reach.check_run(study)
        elif name == "resume":
            self.reach.check_run(values["name"])
        return values


def _options(tool: Tool) -> dict[str, tuple[Any, Any, Any]]:
    parameters, answer = inspect.signature(tool.command, eval_str=True).parameters, {}
    for name in tool.arguments:
        kind, info = get_args(parameters[name].annotation)
        default = parameters[name].default
        answer[name] = (kind, info, ... if default is inspect.Parameter.empty else default)
    return answer


def mcp(
    files: Annotated[
        list[Path] | None,
        argument("[FILE]...", "Study files, tables and folders outside of this folder."),
    ] = None,
    lab: options.Lab = None,
) -> None:
    """Serve studies to a coding agent, by MCP over stdio.

    Its tools list, plan, run, show, best, stop, pause, resume, extend, enqueue, predict, report and laws return what
    the commands print with --json. It runs no shell. Files are read in this folder, in the lab, and where you name
    them; code and addresses that need your permission are refused. Needs sweeplab[mcp].

    \b
    $ sweeplab mcp
    $ sweeplab mcp ~/tables/runs.csv --lab ~/lab
    """
    if find_spec("mcp") is None:
        raise BadInput(
            "sweeplab mcp needs the SDK of the protocol: pip install 'sweeplab[mcp]'"
        )
    place = lab_folder(lab)
    for file in files or ():
        if not file.exists():
            raise BadInput(f"{file}: no such file or folder")
    named = [path.resolve() for path in (Path.cwd(), place, *(files or ()))]
    import anyio

    anyio.run(_serve, Tools(Reach(place, list(dict.fromkeys(named)))))


async def _serve(tools: Tools) -> None:
    from anyio import CapacityLimiter, to_thread
    from mcp import types
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    one_at_a_time = CapacityLimiter(1)

    async def list_tools(context: Any, page: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=(tool.command.__doc__ or "").partition("\n")[0],
                    input_schema=tools.models[name].model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=tool.reads_only),
                )
                for name, tool in TOOLS.items()
            ]
        )

    async def call_tool(
        context: Any, asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            answer = await to_thread.run_sync(
                tools.call, asked.name, asked.arguments or {}, limiter=one_at_a_time
            )
        except (BadInput, TrackingUnavailable, OSError) as error:
            refusal = types.TextContent(type="text", text=str(error))
            return types.CallToolResult(content=[refusal], is_error=True)
        text = types.TextContent(type="text", text=json.dumps(answer))
        return types.CallToolResult(content=[text], structured_content=answer)

    server = Server(
        "sweeplab", version=VERSION, on_list_tools=list_tools, on_call_tool=call_tool
    )
    sys.stdout = sys.__stdout__  # which the protocol takes for itself
    async with stdio_server() as (requests, answers):
        sys.stdout = sys.stderr
        await server.run(requests, answers, server.create_initialization_options())
