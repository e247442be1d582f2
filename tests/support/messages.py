"""The forms that messages have by CONTRIBUTING.md, and the texts in the code that become messages."""

import ast
import re
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

BANNED = [
    r"\b(?:is|are|or) no(?:ne)?\b(?! such)",
    r"\bha(?:s|ve) not\b",
    r"\b(?:is|are) said\b",
    r"\bsays? of\b",
    r"\bof which\b",
    r"\b(?:in )?what (?:is|are)\b",
    r"\bgoes? with\b",
    r"\b(?:tells?|told)\b",
    r"\bwithout a word\b",
    r"\bwent away\b",
    r"\bexpected some\b",
    r"\bas (?:many|much)\b",
    r"\b(?:not that|not those) of\b",
    r"\bthemselves\b",
    r"\bnot as specified\b",
    r"\bcut short\b",
    r"\bmakes? no sense\b",
    r"\brank should be\b",
    r"\?",
    r"^\w+=(?:\{\}|')",  # not "ARGUMENT = VALUE"
]


def forms():
    """Each form of CONTRIBUTING.md: how it is written, what matches it, and an example."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Messages") : text.index("## The rooms")]
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
    """Assert that a message has one of the forms, and none of the phrases that readers stumble over."""
    assert any(found.fullmatch(message) for _, found, _ in forms()), f"no form of CONTRIBUTING.md: {message}"
    assert not (phrases := banned(message)), f"{phrases}: {message}"
    expects = r"\bexpected |\bout of range for |; (?:run: |(?:%s) )|: not |^%s: (?:%s)"
    assert re.search(expects % (VERBS, TOKENS["PATH"], TOKENS["SYSTEM"]), message), message


def banned(text):
    """The phrases in a text that no message may have, without what it quotes of the user's."""
    return [phrase for phrase in BANNED if re.search(phrase, re.sub(r"; run: .*", "", text))]


def literals(path):
    """The strings in a module that people read, with {} for what is filled in: all with a space but docstrings."""
    tree = ast.parse(path.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    plain = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | plain:
            text = node.value
        if text and " " in text:
            yield node.lineno, text


def raised_in_c(path):
    """The texts that the binding raises."""
    text = path.read_text()
    for found in re.finditer(r"PyErr_(?:Format|SetString)\(.*?\);", text, re.DOTALL):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', found[0])
        yield text.count("\n", 0, found.start()) + 1, "".join(parts)
