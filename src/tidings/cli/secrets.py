"""`tidings secrets`: the keys that secrets in the database are encrypted with, and the key that messages are signed with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.printing import AsJson, counting, say
from tidings.errors import OperatorError

app = typer.Typer(help="Keys that secrets are encrypted with, and the key that messages are signed with.", no_args_is_help=True)


@app.command("new-master-key")
def new_master_key(
    file: Annotated[Path, typer.Argument(help="A file that is not there yet. Only its owner can read it.")],
    as_json: AsJson = False,
) -> None:
    """Make a master key. Keep a copy away from the database's backups: without it nobody can read the secrets."""
    from tidings.secrets import master_key

    master_key.make_file(file)
    made = master_key.from_file(file, "FILE")
    values = {"file": str(file), "id": made.id}
    say(
        as_json,
        values,
        f"master key {made.id} in {file}: set TIDINGS_SECRETS__MASTER_KEY_FILE={file}, and keep a copy elsewhere",
    )


@app.command()
@audited("secrets rotate")
def rotate(
    new_master_key_file: Annotated[Path | None, typer.Option(help="A file with the master key that is to come.")] = None,
    new_master_key_command: Annotated[str, typer.Option(help="A command that prints the master key that is to come.")] = "",
    as_json: AsJson = False,
) -> None:
    """Encrypt every secret again, under a new data key, while everything goes on. One that was killed is resumed."""
    from tidings import bootstrap
    from tidings.secrets import master_key

    if new_master_key_file is not None and new_master_key_command:
        raise OperatorError("Name one new master key: --new-master-key-file or --new-master-key-command.")
    new = None
    if new_master_key_file is not None:
        new = master_key.from_file(new_master_key_file, "--new-master-key-file")
    elif new_master_key_command:
        new = master_key.from_command(new_master_key_command, "--new-master-key-command")
    begin()
    done = bootstrap.rotate_secrets(settings_module.load(), new, counting("secrets"))
    values = {
        "data_key": str(done.data_key),
        "resumed": done.resumed,
        "secrets": done.secrets,
        "total": sum(done.secrets.values()),
        "master_keys": done.masters,
        "undecryptable": done.undecryptable,
    }
    words = [f"{name:30} {number}" for name, number in done.secrets.items()]
    words.append(
        f"{values['total']} secrets {'resumed and ' if done.resumed else ''}encrypted under the data key {done.data_key}"
    )
    words.append(f"which is under the master key {' and under '.join(done.masters)}")
    if len(done.masters) > 1:
        words.append(
            "Restart every process with the new master key, then run `tidings secrets rotate` again to end the old one."
        )
    words += [f"left as it is: {each}" for each in done.undecryptable]
    say(as_json, values, "\n".join(words))


@app.command("rotate-signing-key")
@audited("secrets rotate-signing-key")
def rotate_signing_key(as_json: AsJson = False) -> None:
    """Sign messages with a new key, within a minute. Certificates of the keys before stay where they are."""
    from tidings import bootstrap

    url = bootstrap.replace_signing_key(settings_module.load())
    say(as_json, {"certificate": url}, f"messages are signed with a new key within a minute; its certificate is {url}")
