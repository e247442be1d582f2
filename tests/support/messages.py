"""The forms of error messages: `WHERE: what is wrong: expected X, found Y; run: COMMAND (REMARK)`.

A message begins with the place or the argument, has a number wherever there is one, and says what was expected or what
to do. Expected comes before found. The command mends what is wrong. `(byte N)` is where the record begins. An option is
named in the words of the user: `--bad skip` where a command runs, `bad='skip'` in Python.
"""

import re
from functools import cache

FORMS = {
    "[PATH: ]ARGUMENT = VALUE, expected X": "num_replicas = 0, expected 1 or more",
    "ARGUMENT: [WHAT: ]expected X[, found Y]": "weights: expected 2, one for each dataset, found 3",
    "ARGUMENT: WHAT; REMEDY": (
        "column 'length': a worker process died, killed or out of memory; use workers=1 to see why"
    ),
    "ARGUMENT [= ]N is out of range for RANGE": "index[17] = 52000 is out of range for 50000 records",
    "PATH: [WHAT: ]expected X[, found Y]": "scan.npy: expected an array of one axis or more, found one number",
    "PATH: WHAT; REMEDY": (
        "train.jsonl: not indexed yet; run: python -m mmapds.index train.jsonl (or open it with build=True)"
    ),
    "PATH: SYSTEM": "train.jsonl: no such file",
    "PATH: KIND: WHAT; REMEDY": (
        "train.jsonl.mmx: STALE: train.jsonl was 980 bytes when indexed and is 968 now; run: python -m "
        "mmapds.index train.jsonl"
    ),
    "PATH: KIND: expected X, found Y": "train.mma: VERSION: expected format 1, found 3; upgrade mmapds",
    "PATH: not X: REASON": "a.npy: not an .npy file: EOF: reading magic string, expected 8 bytes got 5",
    "PATH:LINE (byte N): [WHAT: ]expected X[, found Y]": (
        "train.jsonl:41 (byte 51200): expected a number at `source_len`, found a string (record 40 of the index)"
    ),
    "PATH:LINE (byte N): not X: REASON": (
        "train.jsonl:41 (byte 51200): not JSON: unexpected end of data: line 1 column 9 (char 8); leave such "
        "lines out with --bad skip, or write the line again (record 40 of the index)"
    ),
    "PATH: UNIT N[ (byte N)]: [WHAT: ]expected X[, found Y]": (
        "a.tar: record 7 (byte 20480): expected a whole sample, found the end of the file at byte 20992; "
        "leave it out with --truncated drop"
    ),
    "PATH: UNIT N[ (byte N)]: not X: REASON": (
        "a.tfrecord: record 7 (byte 2048): not a tf.train.Example: byte 9: expected wire type 0, 1, 2 or 5, found 7"
    ),
    "NAME needs PACKAGE": "mmapds.DistributedSampler needs torch; run: pip install torch",
}
"""Each form, and an example. Any may end in `; REMEDY`, a command or an imperative, and in a remark in parentheses."""

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
    """Each form: how it is written, what matches it, and an example."""
    return [(form, pattern(form), example) for form, example in FORMS.items()]


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
    assert any(found.fullmatch(message) for _, found, _ in forms()), f"no form of a message: {message}"
    expects = r"\bexpected |\bout of range for |; (?:run: |(?:%s) )|: not |^%s: (?:%s)"
    assert re.search(expects % (VERBS, TOKENS["PATH"], TOKENS["SYSTEM"]), message), message
