"""`hayate-matrix config`: what is set, where it was set, and whether it can be used."""

from __future__ import annotations

import typer

from hayate_matrix.cli.options import Config, Home, Rooms, Set, read_settings
from hayate_matrix.settings.restored import check_restored

app = typer.Typer(help="Show or check the settings.", no_args_is_help=True)


@app.command()
def show(home: Home = None, config: Config = None, rooms: Rooms = None, sets: Set = None) -> None:
    """Print each setting, its value and where it comes from; secrets are masked.

    Example:

        hayate-matrix config show --rooms ''
    """
    loaded = read_settings(home, config, sets, rooms)
    rows = list(loaded.list_rows())
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    print(f"# home: {loaded.home}")
    print(f"# file: {loaded.file or 'none'}")
    for name, value, place in rows:
        print(f"{name:<{names}} = {value:<{min(values, 48)}}  # {place}")


@app.command()
def check(home: Home = None, config: Config = None, rooms: Rooms = None, sets: Set = None) -> None:
    """Check the settings and print every fault at once; the exit code is 78 if there is one.

    Example:

        hayate-matrix config check --config /etc/hayate/hayate.toml
    """
    loaded = read_settings(home, config, sets, rooms)
    check_restored(loaded)
    count, total = len(loaded.places), len(list(loaded.list_rows()))
    print(f"{loaded.file or 'No settings file'}: all settings can be used; {count} of {total} set, the others have their defaults.")
