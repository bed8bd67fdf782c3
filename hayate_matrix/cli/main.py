"""`hayate-matrix`: each command does one thing, and each error becomes its text and its exit code."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from hayate_matrix import __version__
from hayate_matrix.cli import backup, config, doctor, export, login, reseal
from hayate_matrix.cli.options import Config, Home, Rooms, Set, read_settings, say_again
from hayate_matrix.errors import HayateError, StopError, WaitError

app = typer.Typer(
    name="hayate-matrix",
    help=(
        "A Matrix bot with end-to-end encryption.\n\n"
        "First `hayate-matrix login`, then `hayate-matrix run`; `hayate-matrix doctor` says what is wrong.\n\n"
        "Exit codes: 0 done · 1 doctor found a fault · 2 wrong use of the command line · 69 no answer, try again later · "
        "70 a fault of the program · 74 a database can't be used · 75 the home is in use · 78 settings or account can't be used."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(config.app, name="config")
app.command("login")(login.login)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("export")(export.export)
app.command("reseal")(reseal.reseal)

EXIT_UNAVAILABLE = 69
EXIT_FAULT = 70


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"hayate-matrix {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None: ...


@app.command()
def run(home: Home = None, config: Config = None, rooms: Rooms = None, sets: Set = None) -> None:
    """Run the bot until it is told to stop (Ctrl-C or SIGTERM).

    Examples:

        hayate-matrix run

        hayate-matrix run --rooms '#ops:example.org, dm:@ann:example.org' --set log.format=json
    """
    loaded = read_settings(home, config, sets, rooms)
    # What imports make stays: to look for garbage in it costs a tenth of the start, and again and again later.
    gc.disable()
    from hayate_matrix import app as program

    gc.freeze()
    gc.enable()
    asyncio.run(program.run(loaded))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        app(arguments)
    except HayateError as error:
        print(f"hayate-matrix: {say_again(str(error))}", file=sys.stderr)
        if _is_debugging():
            traceback.print_exc()
        sys.exit(_find_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001  the last place that can turn a fault of the program into a sentence
        print(f"hayate-matrix: a fault of the program: {type(error).__name__}{_find_place(error)}: {error}", file=sys.stderr)
        if _is_debugging():
            traceback.print_exc()
        else:
            print("Run the same command with --set log.level=debug to see where, and report that.", file=sys.stderr)
        sys.exit(EXIT_FAULT)


def _find_exit_code(error: HayateError) -> int:
    if isinstance(error, StopError):
        return error.exit_code
    return EXIT_UNAVAILABLE if isinstance(error, WaitError) else EXIT_FAULT


def _is_debugging() -> bool:
    import logging

    return logging.getLogger().level == logging.DEBUG


def _find_place(error: Exception) -> str:
    """Return where in our own code it happened, so that a report without a traceback is still of use."""
    package = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(package)]
    return f" in {Path(frames[-1].filename).stem}, line {frames[-1].lineno}" if frames else ""


if __name__ == "__main__":
    main()
