"""How Sphinx makes the site. What it reads is laid out by assemble.py; warnings are errors."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "mmapds"
author = "The mmapds authors"
copyright = "2026, The mmapds authors"  # noqa: A001 - Sphinx's name
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
default_role = "py:obj"  # `this` in docstrings is code, and a link if it is a public name
nitpicky = True
# What must be found is what looks like a public name; other code, and names of other projects, are no links.
nitpick_ignore_regex = [(r"py:.*", r"(?!mmapds\.(orders\.|convert\.)?\w+$).*")]
smartquotes_action = "D"  # dashes alone: quotes may be pasted

myst_heading_anchors = 4  # as a forge makes them
myst_links_external_new_tab = False

autodoc_default_options = {"member-order": "alphabetical"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"mmapds {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_copy_source = True
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"  # others have comments too faint to read


def examples_as_blocks(_app, _what, _name, _obj, _options, lines):
    """Make literal blocks of what is indented after an empty line: docstrings mark code as Markdown does."""
    found, in_section, in_block = [], False, False
    for line, before in zip(lines, ["", *lines], strict=False):
        if line and not line.startswith(" "):
            in_section, in_block = bool(re.fullmatch(r"[A-Z]\w+:", line)), False
        elif line.startswith("    ") and not (before or in_section or in_block):
            found += ["::", ""]
            in_block = True
        found.append(line)
    lines[:] = found


def for_keys_and_readers(_app, _page, _template, context, _doctree):
    """Let keys scroll what is wider than a window, and tell readers of screens what captions and signatures are."""
    wide = r'<pre(?=>)|<div class="table-wrapper [^"]*"'
    body = re.sub(wide, r'\g<0> tabindex="0"', context.get("body", ""))
    body = re.sub(r'<p(?=><img[^>]*\.svg")', '<p class="picture" tabindex="0"', body)
    context["body"] = re.sub(r"<dl(?=>\s*<dd>)", '<dl role="none"', body)  # the parameters of a long signature
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace(' role="heading"', ' role="heading" aria-level="2"')


def setup(app):
    from pygments.lexers.special import TextLexer

    app.add_lexer("re", TextLexer)  # regular expressions of specifications
    app.connect("autodoc-process-docstring", examples_as_blocks, priority=400)  # before napoleon
    app.connect("html-page-context", for_keys_and_readers, priority=600)  # after furo
