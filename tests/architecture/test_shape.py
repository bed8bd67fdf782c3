"""The shape of the code: few names, short files, walls that hold."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hayate_matrix"
MOST_AT_THE_TOP = 14
MOST_IN_A_FOLDER = 12
MOST_LINES = 400
NAMES_OF_NOTHING = frozenset({"util", "utils", "helper", "helpers", "common", "base", "manager", "service", "misc"})
REQUIREMENT = re.compile(
    r"(?:ROOM|E2E|IN|OUT|ACC|CORE|SES|CMD|RUN|JOB|SCH|STO|PERF|REL|SEC|PEER|NEW|CFG|CHK|API|ADM|TAG|SRC|IDX|LBL|CTX|DOC|OWN|FEN|NOT|MEM|ARG|TOOL)-[1-9][0-9]?"
)


def list_tracked(*patterns: str) -> list[Path]:
    """Return the files that git knows, new ones too, without what it ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30).stdout
    return [path for name in output.splitlines() if (path := ROOT / name).is_file()]


def list_folders() -> list[Path]:
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


def list_tests() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in list_tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield path, node


def test_few_names_at_the_top() -> None:
    """The repository and the package each show a newcomer at most fourteen names."""
    at_the_root = {path.relative_to(ROOT).parts[0] for path in list_tracked()}
    assert len({name for name in at_the_root if not name.startswith(".")}) <= MOST_AT_THE_TOP
    in_the_package = {path.relative_to(PACKAGE).parts[0] for path in list_tracked("hayate_matrix/*.py")} - {"__init__.py"}
    assert len(in_the_package) <= MOST_AT_THE_TOP, sorted(in_the_package)


@pytest.mark.parametrize("folder", list_folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_few_modules_in_a_folder(folder: Path) -> None:
    """A folder holds at most twelve modules, so that its list is read at a glance."""
    names = [
        path.name for path in folder.iterdir() if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.name != "__init__.py"
    ]
    assert len(names) <= MOST_IN_A_FOLDER, sorted(names)


def test_files_are_short() -> None:
    """No module of the package is longer than four hundred lines."""
    long_ones = {path.name: count for path in PACKAGE.rglob("*.py") if (count := len(path.read_text().splitlines())) > MOST_LINES}
    assert long_ones == {}


def test_no_name_says_nothing() -> None:
    """No module is called after nothing in particular."""
    names = [path for path in list_tracked("*.py") if NAMES_OF_NOTHING & set(re.split(r"[_./]", str(path.relative_to(ROOT))))]
    assert names == []


def list_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_the_log_speaks_in_words() -> None:
    """The event of every line is words for the operator, never a name out of the code."""
    found = {}
    for place, call in list_calls():
        event = call.args[0] if call.args and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "_log" else None
        if isinstance(event, ast.Constant):
            found[place] = str(event.value)
    assert len(found) > 20
    assert {place: event for place, event in found.items() if "_" in event} == {}


def test_what_an_error_allows_is_a_sentence() -> None:
    """Problem, allowed and remedy stand behind each other in one text, so each has to be read by itself."""
    found = {}
    for place, call in list_calls():
        for keyword in call.keywords:
            literal = keyword.value.values[0] if isinstance(keyword.value, ast.JoinedStr) else keyword.value
            if keyword.arg == "allowed" and isinstance(literal, ast.Constant):
                found[place] = str(literal.value)
    assert len(found) > 5
    assert {place: text for place, text in found.items() if not text.startswith(("Allowed: ", "It ")) and text} == {}


def test_every_module_opens_with_a_sentence() -> None:
    """Each module of the package says in its first line what it is for."""
    for path in PACKAGE.rglob("*.py"):
        if "versions" not in path.parts:
            first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
            assert first.endswith((".", ":")), path


def test_every_test_is_a_claim() -> None:
    """Each test says in one sentence what it shows."""
    silent = [f"{path.name}:{node.lineno}" for path, node in list_tests() if not ast.get_docstring(node)]
    assert silent == []


def test_requirement_marks_are_ids_of_the_specification() -> None:
    """A mark that names no possible requirement would count for nothing."""
    for path in list_tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement":
                ids = [part.value for part in node.args if isinstance(part, ast.Constant)]
                assert ids, f"{path.name}:{node.lineno}"
                assert all(REQUIREMENT.fullmatch(str(name)) for name in ids), f"{path.name}:{node.lineno}: {ids}"


def test_no_file_names_a_place_of_this_machine() -> None:
    """What is committed works anywhere, so it holds no path of the machine that it was written on."""
    places = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:wor" + r"k|far" + r"m)/|\.libr" + r"ary/|\.\./sha" + r"red")
    found = []
    for path in list_tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{number}" for number, line in enumerate(text.splitlines(), 1) if places.search(line)]
    assert found == []


@pytest.mark.requirement("SEC-5")
@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("requirements-*.txt")), ids=lambda path: path.name)
def test_pinned_files_hold_names_versions_and_hashes_only(path: Path) -> None:
    """No pinned file names an address, an index or an unpinned package."""
    lines = path.read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(
            r"[a-z0-9][a-z0-9._\-]*==[^\s:/]+( ; [a-z_'\"<>=!.0-9A-Z() \-]+)? \\| {4}--hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line


CLOCKS = {"sleep", "monotonic", "time", "now", "utcnow", "perf_counter", "wait_for", "timeout"}
OWN_CLOCK = {"asyncio", "time", "datetime"}


@pytest.mark.requirement("CORE-5", "IN-11")
def test_time_comes_from_the_clock_that_is_handed_in() -> None:
    """No part of the running bot asks the machine's clock or sleeps by itself: `app` makes the one real clock, tests make theirs."""
    allowed = {("app.py", "SystemClock"), ("locks.py", "the owner's note, which nobody computes with")}
    found = set()
    for path in list_tracked("hayate_matrix/*.py"):
        if path.parent.name in {"cli", "demo"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in CLOCKS and isinstance(node.value, ast.Name) and node.value.id in OWN_CLOCK:
                found.add(path.name)
    assert found == {name for name, _ in allowed}


@pytest.mark.requirement("SEC-5")
def test_what_is_imported_is_declared() -> None:
    """The package leans on no library that only happens to be there because another one brought it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] + [text for extra in project["optional-dependencies"].values() for text in extra]
    declared = {re.split(r"[\[<>=~ ]", text)[0].lower() for text in listed}
    names = {"nio": "matrix-nio", "markdown_it": "markdown-it-py", "pydantic_core": "pydantic", "pydantic_settings": "pydantic-settings"}
    for path in list_tracked("hayate_matrix/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [part.name for part in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for top in {module.partition(".")[0] for module in modules} - {"hayate_matrix"} - sys.stdlib_module_names:
                assert names.get(top, top) in declared, f"{path.name}: {top}"


@pytest.mark.parametrize(
    ("module", "line", "guidance"),
    [
        ("harness/intrusion.py", "def load() -> None:\n    import nio\n", "nio stays in matrix/"),
        (
            "harness/intrusion.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hayate_matrix.matrix import http\n",
            "Imports point down",
        ),
        ("matrix/intrusion.py", "import sqlite3\n", "SQL stays in store/"),
        ("core/intrusion.py", "import asyncio\n", "core is pure"),
        ("intrusion.py", "", "intrusion"),
    ],
    ids=["lazy nio", "typing-only neighbour", "SQL in the edge", "a loop in core", "a new name at the top"],
)
def test_the_import_contracts_bite(tmp_path: Path, module: str, line: str, guidance: str) -> None:
    """An import over a wall, lazy or typing-only too, breaks the check, whose message says what to do instead."""
    shutil.copytree(PACKAGE, tmp_path / "hayate_matrix", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "hayate_matrix" / module).write_text(f'"""An intrusion."""\n\n{line}')
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    assert guidance in " ".join((run.stdout + run.stderr).split())
