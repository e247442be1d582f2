"""A server of HTTP that lies: each answer is drawn at random, from a right one to bytes that are no HTTP at all."""

import random
import socket
import threading
import time
from contextlib import suppress

_STATUS = [0, 100, 200, 204, 206, 301, 302, 307, 403, 404, 412, 416, 429, 500, 503, 599, 999]  # 0: no line of HTTP
_TO = ["/d/a.jsonl", "//127.0.0.2/x", "file:///etc/passwd", "http://[::1]:1/", "http://%00/", "ftp://h/", ""]
_WORDS = ["", "-1", "0", "7", "1" * 30, "NaN", "²", "bytes", "hush-hush-hush", "\x7f", "é", "a" * 70_000]


class Liar:
    """A server in threads; use it in a `with` statement.

    Attributes:
      data: the bytes of its one object.
      honest: how probable a right answer is.
      silence: seconds that it may wait before or within an answer.
      seen: the heads of all requests.
    """

    def __init__(self, data, honest=0.6, silence=0.02):
        self.data, self.honest, self.silence, self.seen = data, honest, silence, []
        self.random = random.Random(0)

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/d/a.jsonl"

    def _accept(self):
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._socket.accept()[0],), daemon=True).start()

    def _serve(self, connection):
        with connection, suppress(OSError, ValueError):
            connection.settimeout(5)
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    if not (piece := connection.recv(65_536)):
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                self.seen.append(head)
                if not self._answer(connection, head.decode("latin-1")):
                    return

    def _answer(self, connection, head):
        """Answer a request; return whether the connection goes on."""
        draw = self.random
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
        begin, end = 0, len(self.data)
        if asked := fields.get("range", "").removeprefix("bytes="):
            first, _, last = asked.partition("-")
            begin, end = int(first), int(last) + 1
        body = self.data[begin:end]
        status = 206 if asked else 200
        headers = [("Content-Length", str(len(body))), ("ETag", '"good"')]
        if asked:
            headers.append(("Content-Range", f"bytes {begin}-{end - 1}/{len(self.data)}"))
        is_honest = draw.random() < self.honest
        if not is_honest:
            status, headers, body = self._lie(status, headers, body)
        if draw.random() < 0.1:
            time.sleep(draw.uniform(0, self.silence))
        line = f"HTTP/1.1 {status} said by the server\r\n" if status else draw.choice(["", "HTTP/9 x\r\n", "\0\0\r\n"])
        text = "".join(f"{name}: {value}\r\n" for name, value in headers)
        sent = f"{line}{text}\r\n".encode("latin-1", "replace") + (b"" if head.startswith("HEAD") else body)
        if not is_honest and draw.random() < 0.4:
            connection.sendall(sent[: draw.randrange(len(sent) + 1)])
            return False
        connection.sendall(sent)
        return is_honest

    def _lie(self, status, headers, body):
        """Return an answer that is wrong in one to three ways."""
        draw = self.random
        for _ in range(draw.randint(1, 3)):
            way = draw.randrange(8)
            if way == 0:
                status = draw.choice(
                    [0, 100, 200, 204, 206, 301, 302, 307, 403, 404, 412, 416, 429, 500, 503, 599, 999]
                )
            elif way == 1:
                headers = [(name, value) for name, value in headers if draw.random() < 0.5]
            elif way == 2:
                names = ["Content-Length", "ETag", "Content-Range", "Retry-After", "Last-Modified", "Location"]
                names += ["Transfer-Encoding", "Content-Encoding", "Set-Cookie", "X-" + "a" * draw.randrange(100)]
                headers = [*headers, (draw.choice(names), draw.choice(_WORDS))]
            elif way == 3:
                status, headers = draw.choice([301, 302, 303, 307, 308]), [*headers, ("Location", draw.choice(_TO))]
            elif way == 4:
                body = draw.choice([b"", body[:-1], body + b"x" * 100_000, bytes(len(body)), body[::-1]])
            elif way == 5:
                size = draw.choice([str(len(body)), "8" * 19, "0", "-5", "x", str(1 << 43)])
                headers = [("Content-Length", size), *(each for each in headers if each[0] != "Content-Length")]
            elif way == 6:
                pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
                chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in pieces]
                body = b"".join(chunks) + draw.choice([b"0\r\n\r\n", b"", b"zz\r\n", b"fffffffffffffff\r\nx"])
                headers = [("Transfer-Encoding", "chunked"), *(each for each in headers if each[0] != "Content-Length")]
            else:
                headers = [*headers, *(("X-Many", "a" * 1000) for _ in range(draw.choice([1, 99, 200])))]
        return status, headers, body
