"""The page of all public names, docs/api.md, as it must be; `python -m tests.support.api > docs/api.md` writes it."""

import ast
import inspect
from importlib import import_module

import mmapds
from mmapds import orders
from mmapds.samplers.resumable import ResumableSampler
from tests.support.files import ROOT

COMMAND = "python -m tests.support.api > docs/api.md"
"""What writes the page."""

HEAD = """# Every public name

Each with the first line of its documentation; `help(name)` has the rest. Names that begin with an underscore, and
modules that are not on this page, may change at any time. After `import mmapds`, the modules on it need no import of
their own: `mmapds.convert.convert(...)`. [datasets.md](datasets.md), [samplers.md](samplers.md),
[loader.md](loader.md) and [formats.md](formats.md) say how they go together.
"""
GROUPS = {  # of `mmapds` itself, by the modules that names come from
    "Datasets": ("dataset",),
    "Indexes and files": ("build_index", "columns", "recompress", "writer"),
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


def public_names():
    """The names of `mmapds` itself."""
    return sorted([*mmapds.__all__, "open", "zip"], key=lambda name: (name[0].isupper(), name))


def first_line(thing):
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def members(cls):
    """The public methods and properties that classes of mmapds add, and what `cls[...]` does; by name."""
    found = {}
    for name in ["__getitem__", *sorted(dir(cls))]:
        owners = [base for base in cls.__mro__ if name in vars(base)]
        ours = [owner for owner in owners if owner.__module__.partition(".")[0] == "mmapds"]
        value = inspect.getattr_static(cls, name, None)
        added = not name.startswith("_") and ours == owners and (callable(value) or isinstance(value, property))
        if ours and (added or name == "__getitem__"):
            found[name] = first_line(value)
    return found


def defined(path):
    """The public classes and functions that a file defines, without importing it; and the first line of each."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, (ast.get_docstring(node) or "").partition("\n")[0]


def table(rows):
    """A table of names and what they are."""
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join(["| name | is |", "|---|---|", *lines]) + "\n"


def sections_of(names):
    """A section for each class that has methods; what all samplers have stands in one of its own."""
    shared = {}
    if any(issubclass(getattr(mmapds, name), ResumableSampler) for name in names):
        shared = members(ResumableSampler)
        yield "### Every sampler\n\n" + table((f"sampler.{name}", text) for name, text in shared.items())
    for name in names:
        rows = [(f"{name}.{each}", text) for each, text in members(getattr(mmapds, name)).items() if each not in shared]
        if rows:
            yield f"### `{name}`\n\n{table(rows)}"


def group_of(name):
    """The title under which a name of `mmapds` stands."""
    room = getattr(mmapds, name).__module__.removeprefix("mmapds.").partition(".")[0]
    return next(title for title, rooms in GROUPS.items() if room in rooms)


def integrations():
    """The files of integrations, by module; loading them may need what they integrate."""
    folder = ROOT / "mmapds" / "integrations"
    return {f"mmapds.integrations.{path.stem}": path for path in sorted(folder.glob("[a-z]*.py"))}


def modules():
    """Public names of modules other than `mmapds` itself."""
    return MODULES | {module: [name for name, _ in defined(path)] for module, path in integrations().items()}


def page():
    """The whole page."""
    parts = [HEAD]
    for title in GROUPS:
        names = [name for name in public_names() if group_of(name) == title]
        parts.append(f"## {title}\n\n{table((f'mmapds.{name}', first_line(getattr(mmapds, name))) for name in names)}")
        if title != "Errors":
            parts += sections_of([name for name in names if isinstance(getattr(mmapds, name), type)])
    for module, names in MODULES.items():
        rows = [(f"{module}.{name}", first_line(getattr(import_module(module), name))) for name in names]
        parts.append(f"## `{module}`\n\n{table(rows)}")
    for module, path in integrations().items():
        parts.append(f"## `{module}`\n\n{table((f'{module}.{name}', text) for name, text in defined(path))}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
