"""What stands in the documents."""

import re

from tests.support.files import ROOT


def blocks(document, language=""):
    """The fenced blocks of a document in one language."""
    return [text for found, text in fenced(document) if found == language]


def fenced(document):
    """The language and the text of each fenced block of a document."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def table(document, heading):
    """The first table after a heading: for each row, the code in each of its cells."""
    text = (ROOT / document).read_text()
    rows = re.search(r"(?:^\|.*\|\n)+", text[text.index(heading) :], re.MULTILINE).group()
    return [[re.findall(r"`(.+?)`", cell) for cell in row.split(" | ")] for row in rows.splitlines()[2:]]
