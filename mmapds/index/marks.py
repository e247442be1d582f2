"""Marks of functions that compute columns, by which a build knows whether an index has the numbers of this function.

A mark is the name of the function, a colon, and a hash of what can be seen of it: its code, with that of the functions
in it and of those of its module that it calls; its defaults, what it closes over or is bound to, and the globals that
it reads. Of values, numbers, strings, bytes, patterns, dates, ranges and members of enums count, and tuples and frozen
sets of these; of an object its type, and attributes with such values or functions: all those of the callable itself and
of one whose class is of its module, else those that the code names, and the name of a tokenizer. Of a class of its
module, all functions, classes and such values count. Lists, dicts, files, objects in attributes, what `singledispatch`
registers, metaclasses, and functions and classes of other modules are not looked into.
"""

import datetime
import decimal
import dis
import enum
import fractions
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper, cached_property, partial
from inspect import CO_OPTIMIZED
from operator import attrgetter, itemgetter, methodcaller
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from xxhash import xxh3_64

_SIMPLE = {type(None), bool, int, float, complex, str, bytes, range, decimal.Decimal, fractions.Fraction, uuid.UUID}
_SIMPLE |= {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
_HAS_DOCSTRING = 0x4000000  # a flag of code, from Python 3.13 on
_OF_TOKENIZERS = ("name", "name_or_path")
"""Attributes that say which one it is, of tiktoken's and of those of Transformers."""


def mark_of(function: Callable[..., Any]) -> str:
    """Return the mark of a function, or of another callable; the same in every process of one version of Python."""
    return f"{name_of(function)}:{xxh3_64(_Description(function).text.encode(errors='surrogatepass')).hexdigest()}"


def name_of(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, of what is called in a partial one, or of the type of an object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


class _Description:
    """What can be seen of a function, as text."""

    def __init__(self, function: Callable[..., Any]) -> None:
        innermost = _innermost(function)
        # functions of other modules are looked into where they are given
        self._home = innermost.__globals__ if innermost is not None else None
        self._met: dict[Any, int] = {}  # functions, classes and objects by identity, for those that use one another
        self.text = self._callable(function)

    def _callable(self, value: Any) -> str:
        """Describe what is called, with all of its state."""
        value = _unwrapped(value)
        if isinstance(value, partial):
            innermost = _innermost(value)
            names = _names(innermost.__code__) if innermost is not None else frozenset()
            arguments = [self._value(each, names) for each in value.args]
            named = [f"{name}={self._value(each, names)}" for name, each in sorted(value.keywords.items())]
            return _group("partial", [self._callable(value.func), *arguments, *named])
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            bound = value.__self__
            of = self._value(bound) if isinstance(bound, type) else self._object(bound, None)
            return _group("method", [self._callable(value.__func__), of])
        if isinstance(value, BuiltinFunctionType | type):
            return self._value(value)
        if isinstance(value, itemgetter | attrgetter | methodcaller):
            return self._value(value.__reduce__())
        call = type(value).__call__
        code = [self._function(call)] if isinstance(call, FunctionType) and not self._is_own(type(value)) else []
        return _group("object", [*code, self._object(value, None)])

    def _function(self, function: FunctionType) -> str:
        if (number := self._number(id(function))) is not None:
            return f"function {number}"
        names = _names(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
        given = [
            *(function.__defaults__ or ()),
            *(value for _, value in sorted((function.__kwdefaults__ or {}).items())),
        ]
        values = [self._value(value, names) for value in (*cells, *given)]
        if function.__globals__ is self._home:
            known = [name for name in sorted(_globals_read(function.__code__)) if name in function.__globals__]
            values += [f"{name}={self._global(function.__globals__[name], names)}" for name in known]
        return _group("function", [_code(function.__code__), *values])

    def _number(self, key: Any) -> int | None:
        """Return the number of what was met before, by its identity; None for what is new, which is given one."""
        if key in self._met:
            return self._met[key]
        self._met[key] = len(self._met)
        return None

    def _global(self, value: Any, names: frozenset[str]) -> str:
        """Describe a global that a function reads."""
        value = _unwrapped(value)
        if isinstance(value, FunctionType) and value.__globals__ is not self._home:
            return f"name {value.__module__}.{value.__qualname__}"
        return self._value(value, names)

    def _value(self, value: Any, names: frozenset[str] = frozenset()) -> str:
        """Describe what a function has.

        Args:
          names: those in its code.
        """
        value = _unwrapped(value)
        if (plain := self._plain(value, lambda each: self._value(each, names))) is not None:
            return plain
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type) and self._is_own(value):
            return self._class(value)
        if isinstance(value, BuiltinFunctionType | type):
            return f"name {value.__module__}.{value.__qualname__}"
        return self._object(value, None if callable(value) and self._is_own(type(value)) else names)

    def _attribute(self, value: Any) -> str | None:
        """Describe what an object, a class or a member of an enum has; None for what is not looked into."""
        return self._plain(_unwrapped(value), lambda each: self._attribute(each) or type(each).__qualname__)

    def _plain(self, value: Any, part: Callable[[Any], str]) -> str | None:
        """Describe a value without attributes, or a function; None for any other.

        Args:
          part: describes those of tuples and frozen sets.
        """
        if isinstance(value, enum.Enum):
            held = [str(value.name), self._attribute(value.value) or ""]
            return _group(type(value).__qualname__, [*self._kind(value), *held])
        if isinstance(value, tuple):
            return _group(type(value).__qualname__, [*self._kind(value), *map(part, value)])
        if type(value) is frozenset:
            return self._set(value, part)
        if isinstance(value, FunctionType | partial | MethodType | itemgetter | attrgetter | methodcaller):
            return self._callable(value)
        return _simple(value)

    def _set(self, value: frozenset[Any], part: Callable[[Any], str]) -> str:
        """Describe a frozen set, each entry as if it came first: which one does differs from process to process."""
        if id(value) in self._met:
            return f"set {self._met[id(value)]}"
        met, entries = self._met, []
        for each in value:
            self._met = {**met, id(value): len(met)}  # an entry may be a function that reads this set
            entries.append(part(each))
        self._met = met
        return _group("set", sorted(entries))

    def _kind(self, value: Any) -> list[str]:
        """Describe the class of a value, if it is one of the module of the function."""
        return [self._class(type(value))] if self._is_own(type(value)) else []

    def _is_own(self, found: type) -> bool:
        """Whether a class is one of the module of the function."""
        return self._home is not None and found.__module__ == self._home.get("__name__")

    def _class(self, found: type) -> str:
        """Describe a class of the module, and its bases there, by their functions and values."""
        if (number := self._number(id(found))) is not None:
            return f"class {number}"
        parts = []
        for each in filter(self._is_own, found.__mro__):
            for name, value in sorted(vars(each).items()):
                functions = [function for function in _functions_in(value) if function.__globals__ is self._home]
                if functions:
                    parts.append(_group(name, map(self._function, functions)))
                elif not name.startswith("__") and not isinstance(value, FunctionType):
                    is_own_class = isinstance(value, type) and self._is_own(value)
                    held = self._class(value) if is_own_class else self._attribute(value)
                    parts += [f"{name}={held}"] * (held is not None)
        return _group(f"class {found.__qualname__}", parts)

    def _object(self, value: Any, names: frozenset[str] | None) -> str:
        """Describe an object by its type and attributes.

        Args:
          names: of attributes; None for all.
        """
        if (number := self._number((id(value), names))) is not None:
            return f"object {number}"
        attributes = _attributes(value)
        if names is not None:
            wanted = {*names, *(_OF_TOKENIZERS if hasattr(type(value), "encode") else ())}
            attributes = {name: each for name, each in attributes.items() if name in wanted}
        kind = self._kind(value)
        described = [(name, self._attribute(attributes[name])) for name in sorted(attributes, key=str)]
        held = [f"{name}={text}" for name, text in described if text is not None]
        return _group(f"object of {type(value).__qualname__}", [*kind, *held])


def _simple(value: Any) -> str | None:
    """Describe a value that has no parts which could change; None for any other."""
    if type(value) in _SIMPLE or isinstance(value, PurePath):
        return repr(value)
    if isinstance(value, re.Pattern):
        return _group("pattern", [repr(value.pattern), str(value.flags)])
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return _group(str(value.dtype), [repr(value.item())])
    return None


def _attributes(value: Any) -> dict[Any, Any]:
    """Return the attributes of an object, also those in slots."""
    held = {}
    for found in (vars(each) for each in type(value).__mro__ if "__slots__" in vars(each)):
        for name, slot in found.items():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # a slot that has no value yet
                    held[name] = slot.__get__(value)
    others = getattr(value, "__dict__", None)
    return {**held, **(others if isinstance(others, dict) else {})}


def _functions_in(value: Any) -> list[FunctionType]:
    """Return the functions that an attribute of a class consists of."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        held = [value.fget, value.fset, value.fdel]
    else:
        held = [value.func if isinstance(value, cached_property) else _unwrapped(value)]
    return [each for each in held if isinstance(each, FunctionType)]


def _group(kind: str, parts: Iterable[str]) -> str:
    return f"{kind}({', '.join(parts)})"


def _unwrapped(value: Any) -> Any:
    """Return the function in one that caches its results, else the value."""
    return value.__wrapped__ if isinstance(value, _lru_cache_wrapper) else value


def _innermost(function: Any) -> FunctionType | None:
    """Return a function, that which is partial or decorated, or the method of a call; None for one not in Python."""
    while not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, FunctionType | _lru_cache_wrapper):
            function = function.__wrapped__  # type: ignore[union-attr]
        else:
            call = type(function).__call__
            return call if isinstance(call, FunctionType) else None
    return function


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises for a name that has no value yet
    except ValueError:
        return True
    return False


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and that of all functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _names(code: CodeType) -> frozenset[str]:
    return frozenset(name for each in _nested(code) for name in each.co_names)


def _globals_read(code: CodeType) -> set[str]:
    """Return the globals that code reads but for those that it sets, such as counters, or what is loaded once."""
    read, written = set(), set()
    for each in _nested(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                written.add(str(instruction.argval))
    return read - written


def _code(code: CodeType) -> str:
    """Describe what code does, without docstrings, and without the names and the lines of its file."""
    constants = list(code.co_consts)
    if _has_docstring(code):
        constants[0] = None
    parts = [code.co_code.hex(), code.co_exceptiontable.hex(), repr(code.co_names), *map(_constant, constants)]
    return _group("code", parts)


def _has_docstring(code: CodeType) -> bool:
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _HAS_DOCSTRING)
    is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
    return bool(is_function and code.co_consts and isinstance(code.co_consts[0], str))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple):
        return _group("tuple", map(_constant, value))
    if isinstance(value, frozenset):
        return _group("set", sorted(map(_constant, value)))
    return repr(value)
