"""Schemas as people write them: Spark DDL such as "user STRING, amount DECIMAL(10,2) NOT NULL".

`parse_schema` turns DDL into an Arrow schema, `to_ddl` turns it back. Every type keeps its width: an INT is
int32 and a BIGINT int64. TIMESTAMP is an instant (microseconds, UTC), TIMESTAMP_NTZ a wall-clock time.

| DDL | Arrow | | DDL | Arrow |
|---|---|---|---|---|
| BOOLEAN | bool | | STRING, VARCHAR(n), CHAR(n) | string |
| TINYINT, BYTE | int8 | | BINARY | binary |
| SMALLINT, SHORT | int16 | | DATE | date32 |
| INT, INTEGER | int32 | | TIMESTAMP, TIMESTAMP_LTZ | timestamp[us, UTC] |
| BIGINT, LONG | int64 | | TIMESTAMP_NTZ | timestamp[us] |
| FLOAT, REAL | float32 | | ARRAY<T> | list<element: T> |
| DOUBLE | float64 | | MAP<K, V> | map<K, V> |
| DECIMAL(p, s), DEC, NUMERIC | decimal128(p, s) | | STRUCT<a: T, b: T> | struct<a: T, b: T> |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa

from penstock.errors import SchemaError

COMMENT = b"comment"
_DEPTH_MAX = 32
_LENGTH_MAX = 1_000_000
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:]))"
)
_SIMPLE: dict[str, Callable[[], pa.DataType]] = {
    "BOOLEAN": pa.bool_,
    "TINYINT": pa.int8,
    "BYTE": pa.int8,
    "SMALLINT": pa.int16,
    "SHORT": pa.int16,
    "INT": pa.int32,
    "INTEGER": pa.int32,
    "BIGINT": pa.int64,
    "LONG": pa.int64,
    "FLOAT": pa.float32,
    "REAL": pa.float32,
    "DOUBLE": pa.float64,
    "STRING": pa.string,
    "BINARY": pa.binary,
    "DATE": pa.date32,
    "TIMESTAMP": lambda: pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": lambda: pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": lambda: pa.timestamp("us"),
}
_SIZED_TEXT = ("VARCHAR", "CHAR", "CHARACTER")
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_TYPE_WORDS = (*_SIMPLE, *_SIZED_TEXT, *_DECIMALS, "ARRAY", "MAP", "STRUCT")


def parse_schema(ddl: str | pa.Schema) -> pa.Schema:
    """The Arrow schema that a DDL text (or already a schema) stands for."""
    if isinstance(ddl, pa.Schema):
        _refuse_duplicates(ddl.names, "the schema")
        return ddl
    if not isinstance(ddl, str):
        raise SchemaError(
            f'a schema is a DDL text such as "user STRING, amount DOUBLE" or a pyarrow.Schema,'
            f" not {type(ddl).__name__}"
        )
    if len(ddl) > _LENGTH_MAX:
        raise SchemaError(f"the schema text has {len(ddl)} characters; the limit is {_LENGTH_MAX}")
    parser = _Parser(ddl)
    fields = parser.fields(end="", depth=0)
    _refuse_duplicates([field.name for field in fields], repr(ddl))
    return pa.schema(fields)


def to_ddl(schema: pa.Schema) -> str:
    """The DDL that `parse_schema` reads back as this schema."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def type_ddl(kind: pa.DataType) -> str:
    """A type as DDL, for schemas and for messages; Arrow's own name where DDL has none."""
    for name, make in _SIMPLE.items():
        if kind == make():
            return name
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_ddl(kind.key_type)},{type_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        inner = (kind.field(i) for i in range(kind.num_fields))
        return f"STRUCT<{', '.join(_field_ddl(field, ': ') for field in inner)}>"
    return str(kind)


def unknown_column(name: str, schema: pa.Schema, operator: str) -> SchemaError:
    """The error for a column that is not there: names the operator, the columns and the likeliest one."""
    return SchemaError(
        f"{operator}: there is no column {name!r}; {_candidates(name, schema.names)}"
    )


def require_columns(names: Iterable[str], schema: pa.Schema, operator: str) -> None:
    """Raises `unknown_column` for the first name that is not in the schema."""
    for name in names:
        if name not in schema.names:
            raise unknown_column(name, schema, operator)


def schema_differences(have: pa.Schema, want: pa.Schema) -> list[str]:
    """What differs between two schemas, in words; empty when names, order and types are the same."""
    lines = [
        f"column {name!r} is missing ({type_ddl(want.field(name).type)})"
        for name in want.names
        if name not in have.names
    ]
    for field in have:
        if field.name not in want.names:
            lines.append(f"column {field.name!r} ({type_ddl(field.type)}) is not expected")
        elif field.type != (wanted := want.field(field.name)).type:
            lines.append(
                f"column {field.name!r} is {type_ddl(field.type)}, expected {type_ddl(wanted.type)}"
            )
    if not lines and have.names != want.names:
        lines.append(f"the columns are in the order {_names(have)}, expected {_names(want)}")
    return lines


def _names(schema: pa.Schema) -> str:
    return ", ".join(schema.names)


def _candidates(name: str, names: list[str]) -> str:
    folded = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f"{hint}The columns are: {', '.join(names) if names else '(none)'}"


def _refuse_duplicates(names: list[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaError(f"column {name!r} appears twice in {where}; give each its own name")
        seen.add(name)


def _field_ddl(field: pa.Field, between: str) -> str:
    name = field.name if re.fullmatch(r"[A-Za-z_]\w*", field.name, re.ASCII) else _quote(field.name)
    text = f"{name}{between}{type_ddl(field.type)}"
    if not field.nullable:
        text += " NOT NULL"
    comment = (field.metadata or {}).get(COMMENT)
    return f"{text} COMMENT {_literal(comment.decode())}" if comment is not None else text


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


class _Parser:
    """Reads one DDL text from left to right."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens = self._split()
        self._next = 0

    def fields(self, end: str, depth: int) -> list[pa.Field]:
        """Fields with commas between them, up to and including the mark `end`."""
        if depth > _DEPTH_MAX:
            raise self._error(f"types are nested more than {_DEPTH_MAX} deep")
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        if not self._take(end):
            raise self._error(f"expected ',' or {end!r}" if end else "expected ',' or the end")
        return fields

    def _field(self, depth: int) -> pa.Field:
        name = self._name()
        self._take(":")
        kind = self._type(depth)
        nullable = not self._take_words("NOT", "NULL")
        metadata = {COMMENT: self._text()} if self._take_words("COMMENT") else None
        return pa.field(name, kind, nullable=nullable, metadata=metadata)

    def _name(self) -> str:
        token = self._peek()
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word":
            raise self._error("expected a column name")
        self._next += 1
        return token.text

    def _type(self, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise self._error(f"types are nested more than {_DEPTH_MAX} deep")
        token = self._peek()
        word = token.upper
        if token.kind != "word" or word not in _TYPE_WORDS:
            raise self._error(self._unknown_type(token))
        self._next += 1
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in _SIZED_TEXT:
            self._numbers(1, 1)
            return pa.string()
        return self._decimal(token) if word in _DECIMALS else self._nested(word, depth)

    def _decimal(self, token: _Token) -> pa.DataType:
        given = self._numbers(0, 2)
        precision, scale = (*given, 10, 0)[:2] if not given else (*given, 0)[:2]
        if not 1 <= precision <= 38 or scale > precision:
            problem = f"DECIMAL({precision},{scale}) needs 1 <= precision <= 38, scale <= precision"
            raise self._error(problem, token)
        return pa.decimal128(precision, scale)

    def _nested(self, word: str, depth: int) -> pa.DataType:
        self._expect("<")
        if word == "STRUCT":
            return pa.struct(self._struct_fields(depth))
        first = self._type(depth + 1)
        if word == "MAP":
            self._expect(",")
            second = self._type(depth + 1)
        self._expect(">")
        return pa.list_(pa.field("element", first)) if word == "ARRAY" else pa.map_(first, second)

    def _struct_fields(self, depth: int) -> list[pa.Field]:
        if self._take(">"):
            return []
        return self.fields(end=">", depth=depth + 1)

    def _numbers(self, least: int, most: int) -> list[int]:
        """`(10, 2)`: whole numbers in parentheses; left out entirely where `least` is 0."""
        if least == 0 and self._peek().text != "(":
            return []
        self._expect("(")
        numbers = [self._number()]
        while len(numbers) < most and self._take(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self._peek()
        if not re.fullmatch(r"[0-9]{1,9}", token.text):
            raise self._error("expected a whole number")
        self._next += 1
        return int(token.text)

    def _text(self) -> bytes:
        token = self._peek()
        if token.kind != "text":
            raise self._error("expected a quoted comment")
        self._next += 1
        plain = re.sub(r"\\(.)|''", lambda m: m[1] or "'", token.text[1:-1], flags=re.DOTALL)
        return plain.encode()

    def _take(self, text: str) -> bool:
        token = self._peek()
        if token.text != text or token.kind not in ("mark", "end"):
            return False
        self._next += 1
        return True

    def _take_words(self, *words: str) -> bool:
        ahead = self._tokens[self._next : self._next + len(words)]
        if [token.upper for token in ahead] != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error(f"expected {mark!r}")

    def _peek(self) -> _Token:
        return self._tokens[min(self._next, len(self._tokens) - 1)]

    def _split(self) -> list[_Token]:
        tokens, at, end = [], 0, len(self._ddl.rstrip())
        while at < end:
            match = _TOKEN.match(self._ddl, at)
            if match is None:
                at += len(self._ddl[at:]) - len(self._ddl[at:].lstrip())
                raise self._error("unexpected character", _Token("mark", self._ddl[at], at))
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return [*tokens, _Token("end", "", end)]

    def _unknown_type(self, token: _Token) -> str:
        if token.kind != "word":
            return "expected a type"
        close = get_close_matches(token.upper, _TYPE_WORDS, n=1)
        return f"unknown type {token.text!r}" + (f", did you mean {close[0]}?" if close else "")

    def _error(self, problem: str, token: _Token | None = None) -> SchemaError:
        token = token or self._peek()
        found = f"found {token.text!r}" if token.kind != "end" else "the text ends"
        return SchemaError(
            f"schema {self._ddl!r}, position {token.position + 1}: {problem} ({found});"
            ' write it like "user STRING, amount DOUBLE"'
        )
