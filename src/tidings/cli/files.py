"""`tidings files`: the file registry, beside its webhook."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidings import log
from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, progress_bar, say
from tidings.errors import OperatorError

app = typer.Typer(help="The file registry. `tidings consume files` feeds it.", no_args_is_help=True)


@app.command()
def validate(
    again: Annotated[bool, typer.Option("--again", help="Look again at files where that failed.")] = False,
    threads: Annotated[int, typer.Option(help="Files that are read at once.", min=1, max=64)] = 4,
    as_json: AsJson = False,
) -> None:
    """Read each file that is new in the registry: is it what the client sent, and of which source study is it?

    The SHA-256 of the object is compared with the client's; a source dataset in an .h5ad file is linked to the source study
    whose DOI its metadata has. Needs the store: see TIDINGS_FILES__S3_ENDPOINT.
    """
    from tidings.consumers.files.objects import Objects
    from tidings.consumers.files.validating import validate as validate_files

    settings = settings_module.load()
    log.to_stderr(settings)
    objects = Objects(settings.files)
    if not objects.known:
        raise OperatorError("No store to read files from: set TIDINGS_FILES__S3_ENDPOINT, and a key and its secret.")
    with database() as connection, progress_bar("looking for files", "validating") as show:
        connection.autocommit = True
        done = validate_files(connection, objects, settings.files, again, threads, show)
    words = (
        f"{done['files']} files: {done['valid']} valid, {done['invalid']} invalid, {done['error']} could not be checked; "
        f"{done['linked']} linked to their source study, {done['unknown_doi']} with a DOI that is not known, "
        f"{done['stopped']} stopped before a DOI was found"
    )
    say(as_json, dict(done), words)
    if done["invalid"] or done["error"]:
        raise typer.Exit(1)


@app.command()
@audited("files load")
def load(
    path: Annotated[str, typer.Argument(help="A file or folder of lines, as Spark reads them: each is one notification.")],
    as_json: AsJson = False,
) -> None:
    """Load many notifications at once, with Spark: S3 events, or SNS messages with one in them, a line each.

    You vouch for them: signatures are not looked at. What is known already changes nothing, so a load can be repeated.
    """
    from tidings import bootstrap

    settings = settings_module.load()
    log.to_stderr(settings)
    begin()
    shows = sys.stderr.isatty()
    with err.status("starting Spark") as status:
        done = bootstrap.load_files(settings, path, status.update if shows else lambda _: None)
    for word in done.words:
        err.print(f"refused: {word}")
    values = {"notifications": done.notifications, "records": done.records, "refused": done.refused, **done.operations}
    told = ", ".join(f"{number} {name}" for name, number in sorted(done.operations.items()))
    words = f"{done.notifications} notifications with {done.records} records: {told or 'nothing new'}; {done.refused} refused"
    say(as_json, values, words)
