"""What the core must find, said in the plainest Python."""


def records(data: bytes) -> list[tuple[int, bytes]]:
    """(offset, payload) of every record of newline-delimited text."""
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    found = []
    pieces = data[at:].split(b"\n")
    for number, line in enumerate(pieces):
        ended = number < len(pieces) - 1
        if line.strip(b" \t\r"):
            found.append((at, line[:-1] if ended and line.endswith(b"\r") else line))
        at += len(line) + 1
    return found


def starts(data: bytes) -> list[int]:
    return [offset for offset, _ in records(data)]
