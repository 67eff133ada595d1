"""`sweeplab export-hf` and `sweeplab import-hf`: runs for the package `transformers`, and from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeplab.cli.options import AsJson, Lab, Run

Force = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]


def export_hf(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write it to.", show_default=False)],
    force: Force = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as a folder for the package transformers.

    It is written for the class that can express it: GPT-2, Llama, BERT or T5.

    \b
    $ sweeplab export-hf small small-hf
    """
    from sweeplab.cli.tables import print_json
    from sweeplab.hf.exporting import export_run
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.opening import open_run

    architecture = export_run(open_run(run, lab_folder(lab)), folder, force)
    if as_json:
        print_json({"folder": str(folder), "class": architecture.class_name})
        return
    typer.echo(f"wrote {folder}, a {architecture.class_name}")
    typer.echo(f"next: transformers.{architecture.class_name}.from_pretrained({str(folder)!r})")


def import_hf(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder with config.json and safetensors.", show_default=False),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="The run's name.  [default: the folder's]", show_default=False
        ),
    ] = None,
    force: Force = False,
    lab: Lab = None,
    as_json: AsJson = False,
) -> None:
    """Bring a folder of the package transformers in as a run.

    The run stands in the lab's `imported`: a RUN as any other, and what a study's `init_from` names.

    \b
    $ sweeplab import-hf gpt2 --name gpt2
    """
    from dataclasses import asdict

    from sweeplab.cli.tables import print_json
    from sweeplab.hf.importing import import_folder
    from sweeplab.records.folders import lab_folder
    from sweeplab.runs.opening import check_imported_name, imported_folder

    place, name = lab_folder(lab), name or folder.resolve().name
    check_imported_name(place, name)
    target = imported_folder(place, name)
    found = import_folder(folder, target, name, force)
    if as_json:
        print_json({"run": name, "folder": str(target), **asdict(found)})
        return
    typer.echo(f"wrote {target}: {found.family}, {found.n_params:,} parameters, tokenizer {found.tokenizer}")
    if found.without:
        typer.echo(f"{found.without}: its texts are token ids, such as '12 7 304'", err=True)
