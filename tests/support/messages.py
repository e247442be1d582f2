"""The forms that messages have by CONTRIBUTING.md."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

VERBS = (
    "add|build|cast|choose|compute|convert|copy|decompress|define|delete|drop|give|index|keep|leave|load|make|name|open|pass|"
    "raise|remove|rename|save|set|upgrade|use|write|run"
)
"""How a remedy begins that is not a command."""

TOKENS = {
    "ARGUMENT": (
        r"(?:--[a-z-]+(?: [^\s:]+)?|[A-Za-z_]\w*)(?: '[^'\n]*'| \"[^\"\n]*\")?(?:\[[^\]\n]*\]|\.\w+)*(?:, [a-z_]+)?"
    ),
    "PATH": r"(?=[^:\n]*[./])\S[^:\n]*",
    "LINE": r"\d+",
    "N": r"-?(?:\d+|0x[0-9a-f]+\.\.\.)",
    "UNIT": "record|row|sequence|frame|block",
    "KIND": "STALE|DAMAGED|VERSION|NOT AN INDEX|NOT AN ARRAY FILE",
    "VALUE": r"[^\n]+?",
    "WHAT": r"[^;\n]+?(?:; nothing was changed)?",
    "X": r"[^;\n]+?",
    "Y": r"[^;\n]+?",
    "RANGE": r"[\w ]*\d[\w ]*",
    "SYSTEM": "no such file(?: or directory)?|permission denied|is a directory|not a directory|no space left on device",
    "REASON": r"[^\n]+?",
    "REMEDY": rf"(?:run: |(?:{VERBS}) )[^\n]+?",
    "NAME": r"[\w.]+(?: = '\w+')?",
    "PACKAGE": r"\w+",
}


@cache
def forms():
    """Each form of CONTRIBUTING.md: how it is written, what matches it, and an example."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Messages") : text.index("## Where things are")]
    rows = re.findall(r"^\| `([^`]+)` \| (`.+`) \|$", table, re.MULTILINE)
    return [(form, pattern(form), example.strip("`").strip()) for form, example in rows]


def pattern(form):
    """The regular expression of a form, with the remedy and the remark that may end it."""
    token = "|".join(rf"\b{name}\b" for name in TOKENS)
    parts = re.split(rf"(\[|\]|{token})", form)
    text = "".join({"[": "(?:", "]": ")?"}.get(part) or named(part) for part in parts)
    remedy = "" if form.endswith("REMEDY") else rf"(?:; {TOKENS['REMEDY']})?"
    return re.compile(rf"{text}{remedy}(?: \(.+\))?")


def named(part):
    return f"(?:{TOKENS[part]})" if part in TOKENS else re.escape(part)


def check(message):
    """Assert that a message has one of the forms, and says what was expected or what to do."""
    assert any(found.fullmatch(message) for _, found, _ in forms()), f"no form of CONTRIBUTING.md: {message}"
    expects = r"\bexpected |\bout of range for |; (?:run: |(?:%s) )|: not |^%s: (?:%s)"
    assert re.search(expects % (VERBS, TOKENS["PATH"], TOKENS["SYSTEM"]), message), message
