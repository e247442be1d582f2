"""The page of all public names, docs/api.md, as it must be; `python -m tests.support.api` writes it."""

import ast
import inspect
import re
import textwrap
from importlib import import_module

import mmapds
from mmapds import orders
from mmapds.samplers.resumable import ResumableSampler
from tests.support.files import ROOT

PAGE = ROOT / "docs" / "api.md"
COMMAND = "python -m tests.support.api"
"""What writes the page."""
ERRORS = """All are a `mmapds.Error`. The message names the place, and what was expected and found there.

```python
try:
    ds = mmapds.open("train.jsonl")
except (mmapds.IndexMissingError, mmapds.StaleIndexError) as error:
    print(error)  # ends with the command that builds the index
```
"""
GROUPS = {  # of `mmapds` itself, by the modules that names come from
    "Datasets": ("dataset",),
    "Indexes and files": ("build_index", "computed_columns", "convert"),
    "Samplers and orders": ("samplers", "orders"),
    "Loaders": ("loader",),
    "Errors": ("errors",),
}
MODULES = {
    "mmapds.orders": [name for name in orders.__all__ if name != "VERSION"],
    "mmapds.convert": ["Converted", "convert"],
    "mmapds.bench": ["bench"],
    "mmapds.report": ["report"],
}
"""Public names of other modules that load with `mmapds` alone."""
INTERNAL = {"append_columns", "bytes_written", "lengths_of", "limit_of", "note_metadata", "reader", "restrict_to"}
"""Methods that rooms have for one another."""
SHARED = ("indices_at", "summary")
"""Methods of most samplers, which stand with those of all."""
_WIDTH = 148  # columns of the page


def public_names():
    """The names of `mmapds` itself."""
    return sorted([*mmapds.__all__, "open", "zip"], key=lambda name: (name[0].isupper(), name))


def first_line(thing):
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def example_in(docstring):
    """The example of a docstring: lines that are indented behind an empty one, before the arguments."""
    found = re.search(r"\n\n((?:    (?!- ).*\n|\n)+)", re.split(r"\n\w+:\n", f"{docstring}\n")[0] + "\n")
    return inspect.cleandoc(found[1]) if found else ""


def signature(name, thing):
    """How something is called: its arguments and their defaults."""
    found = [each.replace(annotation=each.empty) for each in inspect.signature(thing).parameters.values()]
    found = [each.replace(default=...) if inspect.isfunction(each.default) else each for each in found]
    text = str(inspect.Signature(found)).replace("Ellipsis", "...").replace("(self, ", "(").replace("(self)", "()")
    return f"{name}{text}"


def members(cls):
    """The public methods and properties that classes of mmapds add, and what `cls[...]` does; by name."""
    found = {}
    for name in ["__getitem__", *sorted(dir(cls))]:
        owners = [base for base in cls.__mro__ if name in vars(base)]
        ours = [owner for owner in owners if owner.__module__.partition(".")[0] == "mmapds"]
        value = inspect.getattr_static(cls, name, None)
        added = not name.startswith("_") and ours == owners and (callable(value) or isinstance(value, property))
        if ours and name not in INTERNAL and (added or name == "__getitem__"):
            found[name] = value
    return found


def defined(path):
    """The public classes and functions that a file defines, without importing it; and the first line of each."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, (ast.get_docstring(node) or "").partition("\n")[0]


def table(rows):
    """A table of names and what they are."""
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join(["| | |", "|---|---|", *lines]) + "\n"


def table_of(owner, found):
    """A table of methods, with their arguments, and of properties."""
    return table(
        (f"{owner}.{name}" if isinstance(each, property) else signature(f"{owner}.{name}", each), first_line(each))
        for name, each in found.items()
    )


def shared(kind):
    """What stands in one table for all classes of a kind: samplers, or orders."""
    if issubclass(kind, ResumableSampler):
        return members(ResumableSampler) | {name: getattr(mmapds.TokenBudgetBatchSampler, name) for name in SHARED}
    return members(orders.Sequential) if kind.__module__ == orders.Order.__module__ else {}


def entry(name, thing):
    """What the page has of one name: what it is, how it is called, an example, and its methods."""
    parts = [f"### `{name}`", first_line(thing)]
    if not inspect.isabstract(thing):
        text = signature(name.rpartition(".")[2], thing)
        parts.append("\n".join(textwrap.wrap(f"`{text}`", _WIDTH, break_long_words=False, break_on_hyphens=False)))
    if example := example_in(inspect.getdoc(thing)):
        parts.append(f"```python\n{example}\n```")
    if isinstance(thing, type):
        own = {each: value for each, value in members(thing).items() if each not in shared(thing)}
        parts += [table_of("", own).rstrip("\n")] if own else []
    return "\n\n".join(parts) + "\n"


def group_of(name):
    """The title under which a name of `mmapds` stands."""
    room = getattr(mmapds, name).__module__.removeprefix("mmapds.").partition(".")[0]
    return next(title for title, rooms in GROUPS.items() if room in rooms)


def integrations():
    """The files of integrations, by module; loading them may need what they integrate."""
    folder = ROOT / "mmapds" / "integrations"
    return {f"mmapds.integrations.{path.stem}": path for path in sorted(folder.glob("[a-z]*.py"))}


def page():
    """The whole page, with the beginning that it has."""
    parts = [PAGE.read_text().partition("\n## ")[0]]  # which people write
    for title in GROUPS:
        names = [name for name in public_names() if group_of(name) == title]
        parts.append(f"## {title}\n")
        if title == "Errors":
            parts.append(ERRORS)
            parts.append(table((f"mmapds.{name}", first_line(getattr(mmapds, name))) for name in names))
            continue
        if title == "Samplers and orders":
            parts.append(f"What every sampler has:\n\n{table_of('sampler', shared(mmapds.TokenBudgetBatchSampler))}")
        parts += [entry(f"mmapds.{name}", getattr(mmapds, name)) for name in names]
    for module, names in MODULES.items():
        parts.append(f"## `{module}`\n")
        if module == "mmapds.orders":
            parts.append("Samplers take one as `order=`. What every order has:\n")
            parts.append(table_of("order", shared(orders.Sequential)))
        parts += [entry(f"{module}.{name}", getattr(import_module(module), name)) for name in names]
    for module, path in integrations().items():
        parts.append(f"## `{module}`\n\n{table(defined(path))}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
