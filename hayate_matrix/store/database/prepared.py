"""A connection on which statements that were built once are also made ready once.

Promise: what `execute`, `scalar` and `scalars` give is what SQLAlchemy's own would give.
How: SQLAlchemy compiles a statement at its first use here; from then on its text and the order of its parameters are known and go straight
     to the driver, which takes a fifth of the time. A short list in a parameter makes one text for each length. Whatever is not so plain
     (lists of parameters, long lists, statements made for one use) goes SQLAlchemy's whole way.
Contract: statements are built once and kept, as `schema` says.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.engine.row import Row
from sqlalchemy.sql.compiler import SQLCompiler

from hayate_matrix.store.database.drivers import find_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.engine.interfaces import Dialect
    from sqlalchemy.sql.base import Executable

    from hayate_matrix.store.database.drivers import Driver

_LONGEST_LIST = 10
"""A page of what is looked up."""
_MOST_KEPT = 500
"""More statements than the code has: something builds them anew, and all are forgotten before they fill the memory."""


class Change:
    """What a statement without rows changed."""

    __slots__ = ("inserted_primary_key", "rowcount")

    def __init__(self, rowcount: int, key: tuple[Any, ...] | None) -> None:
        self.rowcount = rowcount
        self.inserted_primary_key = key
        """The number of a new row, in a table that numbers its rows."""


class Rows(IteratorResult[Any]):
    """What a statement with rows gave; all of them were fetched."""

    def __init__(self, metadata: Any, rows: list[Any], rowcount: int, key: tuple[Any, ...] | None) -> None:
        super().__init__(metadata, iter(rows))
        self._rows = rows
        self.rowcount = rowcount
        self.inserted_primary_key = key

    def first(self) -> Any:
        """Return the first row, or None."""
        if not self._rows:
            return None
        metadata: Any = self._metadata
        return Row(metadata, metadata._processors, metadata._key_to_index, self._rows[0])  # noqa: SLF001 - as IteratorResult makes its rows

    def one_or_none(self) -> Any:
        """Return the only row, or None; an error where there are more."""
        return self.first() if len(self._rows) < 2 else super().one_or_none()  # noqa: PLR2004 - one row

    def scalar(self) -> Any:
        """Return the first value of the first row, or None."""
        row = self.first()
        return None if row is None else row[0]


class _Prepared:
    """One statement for one set of parameter names, and for one length of each list in them."""

    def __init__(self, statement: Executable, names: tuple[str, ...], dialect: Dialect, lengths: tuple[int, ...] = ()) -> None:
        self.statement = statement  # kept, so that nothing else gets its id
        self.text = ""
        """Empty for one that can't be made ready."""
        self.lists: tuple[str, ...] = ()
        is_change = isinstance(statement, sa.Insert | sa.Update | sa.Delete)
        compiled = statement.compile(dialect=dialect, column_keys=list(names) if is_change else None)  # type: ignore[attr-defined]
        if not isinstance(compiled, SQLCompiler) or compiled.insert_prefetch or compiled.update_prefetch:
            return
        given = {name: parameter.key for name, parameter in compiled.binds.items() if parameter.key in names}
        if any(parameter.key in names for parameter in compiled.literal_execute_params):
            return  # its text depends on the value
        self.lists = tuple(sorted(parameter.key for parameter in compiled.post_compile_params if parameter.key in names))
        if self.lists and not lengths:
            return
        if any(parameter.required and parameter.key not in names for parameter in compiled.binds.values()):
            return  # SQLAlchemy says so
        lists = {name: [None] * length for name, length in zip(self.lists, lengths, strict=True)}
        state = compiled.construct_expanded_state({**dict.fromkeys(names), **lists})
        self.spread = [(name, state.parameter_expansion[name]) for name in self.lists]
        """For each list the names of its items."""
        given |= {name: name for _, items in self.spread for name in items}
        processors: Any = {**compiled._bind_processors, **state.processors}  # noqa: SLF001 - how values become the driver's
        self.is_positional = compiled.positional
        self.names = list((state.positiontup if self.is_positional else state.parameters) or [])
        self.fixed: list[Any] = []
        """A value for each name; those that change are filled in."""
        self.given: list[tuple[int, str, Callable[[Any], Any] | None]] = []
        for place, name in enumerate(self.names):
            process = processors.get(name)
            value = None if name in given else state.parameters[name]
            self.fixed.append(value if process is None or name in given else process(value))
            if name in given:
                self.given.append((place, given[name], process))
        self.pick: Callable[[Any], Any] | None = None
        """Gives all values at once, where nothing is fixed and nothing is to be processed: the usual case on SQLite."""
        is_plain = len(self.given) == len(self.names) and not any(process for _, _, process in self.given)
        if self.is_positional and is_plain and len(self.names) > 1:
            self.pick = operator.itemgetter(*(key for _, key, _ in self.given))
        columns = compiled._result_columns  # noqa: SLF001 - how its values become Python's is known nowhere else
        self.is_numbered = isinstance(statement, sa.Insert) and getattr(statement.table, "autoincrement_column", None) is not None
        self.metadata: Any = None
        if columns:
            back = [column.type._cached_result_processor(dialect, None) for column in columns]  # noqa: SLF001 - as above
            self.metadata = SimpleResultMetaData([column.keyname for column in columns], _processors=back if any(back) else None)
        self.text = state.statement

    def fill(self, parameters: Mapping[str, Any]) -> Any:
        """Return the values as the driver takes them."""
        for name, items in self.spread:
            parameters = {**parameters, **dict(zip(items, parameters[name], strict=True))}
        if self.pick is not None:
            return self.pick(parameters)
        values = self.fixed.copy()
        for place, key, process in self.given:
            value = parameters[key]
            values[place] = value if process is None else process(value)
        return values if self.is_positional else dict(zip(self.names, values, strict=True))


class SwiftConnection(sa.Connection):
    """SQLAlchemy's connection with a short way for what was executed before."""

    @functools.cached_property
    def driver(self) -> Driver:
        """What speaks to the database below SQLAlchemy."""
        return find_driver(self)

    @functools.cached_property
    def _ready(self) -> dict[tuple[int, tuple[str, ...], tuple[int, ...]], _Prepared]:
        return {}

    def execute(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """Execute a statement and return its result."""
        if isinstance(parameters, list) and len(parameters) == 1:
            parameters = parameters[0]
        prepared = None
        if execution_options is None and (parameters is None or isinstance(parameters, dict)):
            prepared = self._prepare(statement, parameters or {})
        if prepared is None:
            return super().execute(statement, parameters, execution_options=execution_options)
        try:
            cursor = self.driver.execute(prepared.text, prepared.fill(parameters or {}))
            if prepared.metadata is None:
                return Change(cursor.rowcount, (cursor.lastrowid,) if prepared.is_numbered else None)
            rows = cursor.fetchall()
        except self.dialect.loaded_dbapi.Error as error:
            raise self._wrap(error, prepared.text) from error
        return Rows(prepared.metadata, rows, cursor.rowcount, rows[0] if prepared.is_numbered and rows else None)

    def scalar(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """Execute a statement and return the first value of the first row, or None."""
        return self.execute(statement, parameters, execution_options=execution_options).scalar()

    def scalars(self, statement: Any, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """Execute a statement and return the first values of its rows."""
        return self.execute(statement, parameters, execution_options=execution_options).scalars()

    def _prepare(self, statement: Any, parameters: dict[str, Any]) -> _Prepared | None:
        names = tuple(parameters)
        prepared = self._ready.get((id(statement), names, ()))
        if prepared is None:
            if not isinstance(statement, sa.Select | sa.Insert | sa.Update | sa.Delete | sa.CompoundSelect):
                return None
            if len(self._ready) >= _MOST_KEPT:
                self._ready.clear()
            prepared = self._ready[id(statement), names, ()] = _Prepared(statement, names, self.dialect)
        if prepared.lists:
            return self._prepare_lists(prepared, names, parameters)
        return prepared if prepared.text else None

    def _prepare_lists(self, found: _Prepared, names: tuple[str, ...], parameters: dict[str, Any]) -> _Prepared | None:
        lengths = tuple(len(parameters[name]) for name in found.lists)
        if min(lengths) == 0 or max(lengths) > _LONGEST_LIST:
            return None
        key = (id(found.statement), names, lengths)
        prepared = self._ready.get(key)
        if prepared is None:
            prepared = self._ready[key] = _Prepared(found.statement, names, self.dialect, lengths)
        return prepared if prepared.text else None

    def _wrap(self, error: Exception, text: str) -> BaseException:
        """Return the driver's error as SQLAlchemy would raise it; without the values, which may be what somebody wrote (SEC-3)."""
        dialect = self.dialect
        return sa.exc.DBAPIError.instance(
            text,
            None,
            error,
            dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=dialect.is_disconnect(error, self.connection.driver_connection, None),  # type: ignore[arg-type]
            dialect=dialect,
        )
