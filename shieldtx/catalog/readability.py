"""Whether a reader of one JSON Schema accepts all that a writer of another one writes.

The rules cover the keywords that pydantic makes. A keyword that they do not cover is a finding,
unless both schemas have it with one value: what cannot be compared is never passed silently.

A writer writes only declared fields, as shieldtx does. A reader accepts additional fields unless
its schema forbids them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Node: TypeAlias = Mapping[str, Any]

_ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "format", "contentMediaType"),
    }
)
"""Keywords without a condition, and `format`, which has a rule of its own."""
_DEFINITIONS: Final = frozenset({"$defs", "components"})
_COMPARED: Final = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "discriminator"),
        *("properties", "required", "additionalProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minProperties", "maxProperties"),
    }
)
_LOWEST: Final = ("minimum", "exclusiveMinimum")
_HIGHEST: Final = ("maximum", "exclusiveMaximum")
_TYPES_OF: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """A part of a payload that a writer may write, and a reader does not accept."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def misfits(writer: Node, reader: Node) -> list[Misfit]:
    """Return where a reader of one schema refuses what a writer of the other may write."""
    return list(_Comparison(writer, reader).compare(writer, reader, "payload"))


@dataclass(slots=True)
class _Comparison:
    """One comparison of two documents, whose references may form cycles."""

    writer: Node
    reader: Node
    _open: set[tuple[str, str]] = field(default_factory=set)

    def compare(self, w: Any, r: Any, path: str) -> Iterator[Misfit]:
        """Yield the misfits of two schemas."""
        w, r = _resolved(w, self.writer), _resolved(r, self.reader)
        # As text, because unions make new schemas on the way round a cycle.
        both = json.dumps(w, sort_keys=True), json.dumps(r, sort_keys=True)
        if both in self._open:
            # Inside a comparison of the same two: equal as far as that one is.
            return
        self._open.add(both)
        try:
            yield from self._compare(w, r, path)
        finally:
            self._open.discard(both)

    def _compare(self, w: Node, r: Node, path: str) -> Iterator[Misfit]:
        if w.get("not") == {} or not (r.keys() - _ANNOTATIONS or "format" in r):
            # Nothing is written, or everything is read.
            return
        if (written := _alternatives(w)) is not None:
            for alternative in written:
                yield from self.compare(alternative, r, path)
            return
        for part in r.get("allOf", ()):
            yield from self.compare(w, part, path)
        if (read := _alternatives(r)) is not None:
            yield from self._with_one_of(w, read, path)
            return
        yield from self._simple(w, r, path)

    def _with_one_of(self, w: Node, alternatives: Sequence[Node], path: str) -> Iterator[Misfit]:
        """Yield the misfits with the alternative that fits best."""
        found = [list(self.compare(w, each, path)) for each in alternatives]
        if all(found):
            same_type = [
                each
                for each, alternative in zip(found, alternatives, strict=True)
                if _types(_resolved(alternative, self.reader)) == _types(w)
            ]
            if len(same_type) == 1:
                yield from same_type[0]
            else:
                yield Misfit(path, f"fits none of the {len(found)} alternatives that are read")

    def _simple(self, w: Node, r: Node, path: str) -> Iterator[Misfit]:
        values, accepted = _values(w), _values(r)
        if accepted is not None:
            if values is None:
                yield Misfit(path, f"only {_listed(accepted)} are read, and others are written")
                return
            if lost := [value for value in values if not _is_among(value, accepted)]:
                yield Misfit(path, f"values that are not read: {_listed(lost)}")
            return
        written, read = _types(w), _types(r)
        if read is not None:
            if written is None:
                yield Misfit(path, f"any JSON value is written, only {_or(read)} is read")
                return
            if lost_types := [name for name in written if not _is_read(name, read)]:
                yield Misfit(path, f"{_or(lost_types)} is written, only {_or(read)} is read")
                return
        if values is not None and (found := _checked_keywords(r)):
            yield Misfit(path, f"values with the conditions {', '.join(found)} cannot be compared")
            return
        yield from _limits(w, r, path)
        yield from _others(w, r, path)
        yield from self._objects(w, r, path)
        yield from self._arrays(w, r, path)

    def _objects(self, w: Node, r: Node, path: str) -> Iterator[Misfit]:
        written, read = w.get("properties", {}), r.get("properties", {})
        others_written = w.get("additionalProperties", False)
        others_read = r.get("additionalProperties", True)
        yield from _required(w, r, path)
        for name, schema in written.items():
            if name in read:
                yield from self.compare(schema, read[name], f"{path}.{name}")
            elif others_read is False:
                yield Misfit(f"{path}.{name}", "is not declared, and further fields are refused")
            elif others_read is not True:
                yield from self.compare(schema, others_read, f"{path}.{name}")
        if others_written is not False and _is_object(w):
            if others_read is False:
                yield Misfit(path, "further fields are written and refused")
            elif others_read is not True:
                yield from self.compare(others_written, others_read, f"{path}.*")
            for name in read.keys() - written.keys():
                yield from self.compare(others_written, read[name], f"{path}.{name}")

    def _arrays(self, w: Node, r: Node, path: str) -> Iterator[Misfit]:
        first_written, rest_written = _items(w)
        first_read, rest_read = _items(r)
        for index in range(max(len(first_written), len(first_read))):
            one = first_written[index] if index < len(first_written) else rest_written
            other = first_read[index] if index < len(first_read) else rest_read
            yield from self.compare(one, other, f"{path}[{index}]")
        if w.get("maxItems", len(first_written) + 1) > len(first_written):
            yield from self.compare(rest_written, rest_read, f"{path}[]")
        if r.get("uniqueItems") and not w.get("uniqueItems"):
            yield Misfit(path, "equal items are written and refused")


def _required(w: Node, r: Node, path: str) -> Iterator[Misfit]:
    """Yield the fields without which a payload is refused; a computed field is never read."""
    written, read = w.get("properties", {}), r.get("properties", {})
    for name in r.get("required", ()):
        schema = read.get(name)
        is_computed = isinstance(schema, Mapping) and schema.get("readOnly")
        if name not in w.get("required", ()) and not is_computed:
            absence = "may be left out" if name in written else "is new"
            yield Misfit(f"{path}.{name}", f"is required and {absence}")


def _limits(w: Node, r: Node, path: str) -> Iterator[Misfit]:
    for unit in ("Length", "Items", "Properties"):
        lowest, highest = r.get(f"min{unit}", 0), r.get(f"max{unit}")
        if w.get(f"min{unit}", 0) < lowest:
            yield Misfit(path, f"min{unit} {lowest} is read, and less is written")
        if highest is not None and w.get(f"max{unit}", highest + 1) > highest:
            yield Misfit(path, f"max{unit} {highest} is read, and more is written")
    for keys, sign in ((_LOWEST, 1), (_HIGHEST, -1)):
        bound, own = _bound(r, keys, sign), _bound(w, keys, sign)
        if bound is not None and (own is None or own < bound):
            key = keys[bound[1]]
            yield Misfit(path, f"{key} {r[key]} is read, and numbers beyond it are written")


def _bound(schema: Node, keys: tuple[str, str], sign: int) -> tuple[float, bool] | None:
    """Return the strictest bound, so that a larger result is stricter, whatever its direction."""
    found = [(sign * schema[key], key == keys[1]) for key in keys if key in schema]
    return max(found, default=None)


def _others(w: Node, r: Node, path: str) -> Iterator[Misfit]:
    if "format" in r and r["format"] != w.get("format"):
        written = w.get("format", "any text")
        yield Misfit(path, f"format {r['format']} is read, and {written} is written")
    for key in sorted(_checked_keywords(r)):
        if r[key] != w.get(key):
            yield Misfit(path, f"{key} {r[key]!r} is read, and {w.get(key)!r} is written")


def _checked_keywords(r: Node) -> list[str]:
    return [key for key in r if key not in _ANNOTATIONS | _COMPARED]


def _resolved(schema: Any, document: Node) -> Node:
    """Return a schema without references and definitions, and with a single `allOf` merged."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    found = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    while "$ref" in found:
        target: Any = document
        for step in found.pop("$ref").removeprefix("#/").split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        found = {key: value for key, value in target.items() if key not in _DEFINITIONS} | found
    if len(found.get("allOf", ())) == 1:
        found = dict(_resolved(found.pop("allOf")[0], document)) | found
    return found


def _alternatives(schema: Node) -> list[Node] | None:
    """Return the alternatives of a union, each with the union's other keywords; None: no union."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            shared = {name: value for name, value in schema.items() if name != key}
            return [
                {**shared, **part} if isinstance(part, Mapping) else part for part in schema[key]
            ]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": name} for name in schema["type"]]
    return None


def _values(schema: Node) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _types(schema: Node) -> list[str] | None:
    if "type" in schema:
        found = schema["type"]
        return found if isinstance(found, list) else [found]
    if (values := _values(schema)) is not None:
        return sorted({_TYPES_OF[type(value)] for value in values})
    return ["object"] if "properties" in schema else None


def _is_read(name: str, read: Sequence[str]) -> bool:
    return name in read or (name == "integer" and "number" in read)


def _is_among(value: Any, accepted: Sequence[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in accepted)


def _is_object(schema: Node) -> bool:
    return _types(schema) == ["object"]


def _items(schema: Node) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and of all further items."""
    if isinstance(schema.get("items"), list):
        return schema["items"], schema.get("additionalItems", True)
    return list(schema.get("prefixItems", ())), schema.get("items", True)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(sorted(map(repr, values)))


def _or(names: Sequence[str]) -> str:
    return " or ".join(names)
