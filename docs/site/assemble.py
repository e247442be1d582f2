"""Lay out what Sphinx reads: pages as they are, the notebook with its output, the reference, the gallery, and llms.txt.

`docs/README.md` is the table of contents of all. A page that another one links to comes along, and so does any other
file, so that each link of the plain pages leads to the same thing on the site.
"""

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = Path("docs/README.md")
HOME = Path("README.md")
"""The page that the site begins with, as `index.md`."""
NOTEBOOK = Path("docs/quickstart.ipynb")
COLAB = f"https://colab.research.google.com/github/mmapds/mmapds/blob/main/{NOTEBOOK}"


class Entry(NamedTuple):
    """A line of the table of contents."""

    group: str
    title: str
    page: Path
    about: str


def contents():
    """Yield the entries of the table of contents."""
    group = ""
    for line in (ROOT / CONTENTS).read_text().splitlines():
        if line.startswith("## "):
            group = line[3:]
        elif match := re.fullmatch(r"- \[(.+?)\]\((.+?)\): (.*)", line):
            title, target, about = match.groups()
            yield Entry(group, title, resolved(CONTENTS, target), about)


def resolved(page, target):
    """Return the path below the root that a relative link of a page leads to."""
    return Path(os.path.normpath(page.parent / target))


def prose(text):
    """Return a page without its code, which may look like links."""
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)


def links(page):
    """Yield the path and the anchor of every link from a page into the repository."""
    for target in re.findall(r"\]\(([^()\s]+)\)", prose((ROOT / page).read_text())):
        if ":" not in target:
            path, _, anchor = target.partition("#")
            yield (resolved(page, path) if path else page), anchor


def reached():
    """Return all pages that the table of contents leads to, directly or not, and the other files they link to."""
    pages, files, todo = [], [], [CONTENTS]
    while todo:
        page = todo.pop()
        if page.suffix != ".md":
            files.append(page)
        elif page not in pages:
            pages.append(page)
            todo += [path for path, _ in links(page)]
    return sorted(set(pages)), sorted(set(files))


def home():
    """The first page of the site: the README, and the table of contents as its sidebar."""
    groups = {}
    for entry in contents():
        if entry.page != HOME:
            groups.setdefault(entry.group, []).append((entry.title, entry.page.with_suffix("")))
    groups["Reference"][:0] = [(title, f"reference/{slug(title)}") for title in reference()]
    parts = [(ROOT / HOME).read_text().replace(f"]({NOTEBOOK})", f"]({NOTEBOOK.with_suffix('.md')})")]
    for group, entries in groups.items():
        lines = [f"{title} <{page}>" for title, page in entries]
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *lines, "```\n"]))
    return "\n".join(parts)


def slug(title):
    """Return the file name of a page of the reference."""
    return re.sub(r"\W+", "-", title.lower())


def reference():
    """Return the pages of the reference: by title, the modules and names that stand there."""
    from tests.support import api  # which loads mmapds

    pages = {title: ("mmapds", []) for title in api.GROUPS}
    for name in api.public_names():
        pages[api.group_of(name)][1].append(name)
    files = {module: [name for name, _ in api.defined(path)] for module, path in api.integrations().items()}
    return pages | {module: (module, names) for module, names in {**api.MODULES, **files}.items()}


def directives(module, names):
    """Yield what makes Sphinx document names of a module, and the members that classes add, from their docstrings."""
    from tests.support import api

    for name in names:
        yield f".. auto{'class' if name[0].isupper() else 'function'}:: {module}.{name}"
        members = api.members(getattr(import_module(module), name)) if name[0].isupper() else {}
        special = [each for each in members if each.startswith("__")]
        yield f"   :members: {', '.join(each for each in members if each not in special)}" if members else ""
        yield f"   :special-members: {', '.join(special)}\n" if special else ""


def lay_out(into):
    """Write all that Sphinx reads."""
    pages, files = reached()
    listed = {entry.page for entry in contents()}
    for page in pages:
        text = (ROOT / page).read_text()
        if page == HOME:
            continue
        text = re.sub(r"\]\(\.\./README\.md", "](../index.md", text)
        text = re.sub(r"\]\(README\.md", "](index.md", text) if page.parent == Path() else text
        text = text.replace(f"]({NOTEBOOK.name})", f"]({NOTEBOOK.stem}.md)")
        write(into / page, text if page in listed else f"---\norphan: true\n---\n\n{text}")
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, into / file)
    make_gallery(into / "docs")
    run_notebook(into)
    write(into / "index.md", home())
    for title, (module, names) in reference().items():
        about = [] if module == "mmapds" else [f".. automodule:: {module}\n"]
        body = "\n".join([*about, *directives(module, names)])
        write(into / "reference" / f"{slug(title)}.md", f"# {title}\n\n```{{eval-rst}}\n{body}\n```\n")


def make_gallery(docs):
    """Write the reports of the gallery, and link their names to them."""
    from docs.pictures import make_report  # which loads mmapds

    make_report.write_reports(docs / "pictures")
    text = (docs / "gallery.md").read_text()
    write(docs / "gallery.md", re.sub(r"`(report[\w-]*\.html)`", r"[\1](pictures/\1)", text))


def run_notebook(into):
    """Run the notebook, and write it with its output as a page."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook = nbformat.read(ROOT / NOTEBOOK, nbformat.NO_CONVERT)
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    names = {"unique_key": NOTEBOOK.stem, "output_files_dir": "pictures"}
    text, found = MarkdownExporter().from_notebook_node(notebook, resources=names)
    for path, data in found["outputs"].items():
        (into / NOTEBOOK.parent / path).write_bytes(data)
    text = re.sub(r"!\[png\]", f"![a plot of {NOTEBOOK.stem}]", text)
    write(into / NOTEBOOK.with_suffix(".md"), text.replace("\n\n", f"\n\n[Open it in Colab]({COLAB}).\n\n", 1))


def for_models(site):
    """Return llms.txt: the table of contents, with the plain text of each page that the site has."""

    def plain(match):
        page = resolved(CONTENTS, match.group(1).partition("#")[0])
        return f"](_sources/{'index.md' if page == HOME else page.with_suffix('.md')}.txt)"

    text = re.sub(r"\]\(([^()]+)\)", plain, (ROOT / CONTENTS).read_text())
    text = text.replace("# Documentation of mmapds", "# mmapds", 1)
    for target in re.findall(r"\]\((_sources/[^()]+)\)", text):
        assert (site / target).exists(), target
    return text


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    step, folder = sys.argv[1:]
    if step == "sources":
        shutil.rmtree(folder, ignore_errors=True)
        lay_out(Path(folder))
    else:
        write(Path(folder) / "llms.txt", for_models(Path(folder)))
