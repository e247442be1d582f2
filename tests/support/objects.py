"""An object store on loopback that counts, and fails as told: HTTP, and what obstore needs of S3, GCS and Azure.

The object "bucket/name" is at `http://127.0.0.1:PORT/bucket/name`, and at `s3://bucket/name` with the server's options.
"""

import math
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

SECRET = "hush-hush-hush"
KEY = b64encode(SECRET.encode()).decode()
"""The user's keys: neither messages nor files hold them."""
BODY = b"<Error><Code>Refused</Code>\n<Message>said by the server</Message></Error>"
"""The body of every error."""
_PIECE = 1 << 16
_LATE = 0.02  # seconds
_S3 = (
    "<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag>"
    "<LastModified>2020-09-13T12:26:40.000Z</LastModified></Contents>"
)
_AZURE = (
    "<Blob><Name>{}</Name><Properties><Content-Length>{}</Content-Length><Etag>{}</Etag>"
    "<Content-Type>any</Content-Type><Last-Modified>Sun, 13 Sep 2020 12:26:40 GMT</Last-Modified></Properties></Blob>"
)


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of an object."""

    status: int = 0  # of an answer without the object
    headers: dict[str, str] = field(default_factory=dict)  # of that answer
    times: float = math.inf
    method: str = "GET"
    delay: float = 0.0  # seconds before the answer
    rate: float = math.inf  # bytes a second
    sent: float = 1.0  # the fraction of a body after which the connection ends
    after: Callable[[], object] = lambda: None  # called once the object is read, and before it is sent


@dataclass
class Request:
    method: str
    name: str  # of an object, or of a bucket that is listed
    status: int = 0
    begin: int = 0  # byte of the object
    sent: int = 0  # bytes of it, or of the listing


class Server:
    """A server in threads; use it in a `with` statement.

    Attributes:
      data: the bytes of each object.
      etags: ETags that are not the MD5 of the object; None: the server gives none.
      faults: what goes wrong, by object.
      requests: all that were answered.
      bandwidth: bytes a second, of all answers together.
      page: objects in a page of a listing, at most.
      has_time: whether HTTP says when an object was changed.
      most: how many requests were answered at a time, at most.
    """

    def __init__(self):
        self.data: dict[str, bytes] = {}
        self.etags: dict[str, str | None] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[Request] = []
        self.page, self.most, self.active = 1000, 0, 0
        self.has_time = True
        self.bandwidth, self.sent_at = math.inf, 0.0  # the time at which the line has sent everything
        self.lock = threading.Lock()

    def __enter__(self):
        self._server = _Threads(("127.0.0.1", 0), _Handler)
        self._server.store = self
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def options(self):
        """Storage options for S3 URLs."""
        keys = {"access_key_id": "a-user", "secret_access_key": SECRET}
        return {"endpoint": self.endpoint, "region": "us-east-1", "allow_http": True, **keys}

    @property
    def stores(self):
        """Storage options by the URL of the bucket "b"."""
        return {
            "s3://b": self.options,
            "gs://b": {"base_url": self.endpoint, "bearer_token": SECRET, "allow_http": True},
            "az://b": {"endpoint": self.endpoint, "account_name": "a", "account_key": KEY, "allow_http": True},
            f"{self.endpoint}/b": {},
        }

    @property
    def environment(self):
        """The same as environment variables."""
        return {
            f"AWS_{name.upper()}": str(value).lower() if value is True else value
            for name, value in self.options.items()
        }

    def etag(self, name):
        if name in self.etags:
            return self.etags[name]
        return f'"{md5(self.data[name], usedforsecurity=False).hexdigest()}"'

    def began(self, request):
        """Count a request, and return what goes wrong with it."""
        with self.lock:
            self.requests.append(request)
            self.active += 1
            self.most = max(self.most, self.active)
            fault = self.faults.get(request.name)
            if fault is None or fault.method != request.method or fault.times <= 0:
                return Fault()
            fault.times -= 1
            return fault

    def ended(self):
        with self.lock:
            self.active -= 1

    def send(self, size):
        """Wait while the line sends some bytes; a wait that lasts too long is made up for."""
        with self.lock:
            now = time.monotonic()
            self.sent_at = max(self.sent_at, now - _LATE) + size / self.bandwidth
            wait = self.sent_at - now
        time.sleep(max(wait, 0))

    def downloads(self):
        """Count how often each object was sent, or its first part."""
        return Counter(
            each.name for each in self.requests if each.method == "GET" and each.status < 300 and not each.begin
        )

    def sent(self):
        """Count the bytes of each object that were sent."""
        total = Counter()
        for each in self.requests:
            total[each.name] += each.sent
        return total


class _Threads(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.store = self.server.store

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(ConnectionError):  # of a client that was killed
            super().handle()

    def do_GET(self):
        parts = urlsplit(self.path)
        self.name, self.asked = unquote(parts.path).strip("/"), parse_qs(parts.query, keep_blank_values=True)
        self.request_ = Request(self.command, self.name)
        fault = self.store.began(self.request_)
        time.sleep(fault.delay)
        with suppress(ConnectionError):
            if self.command == "PUT":
                self.store.data[self.name] = self.rfile.read(int(self.headers["Content-Length"]))
            if fault.status:
                self.reply(fault.status, BODY, fault.headers)
            elif "list-type" in self.asked or "comp" in self.asked:
                self.page()
            elif self.name in self.store.data:
                self.give(fault)
            else:
                self.reply(404, BODY)
        self.store.ended()

    do_HEAD = do_PUT = do_GET  # noqa: N815 - names of http.server

    def reply(self, status, body, headers=(), fault=Fault()):  # noqa: B008 - never changed
        """Send an answer, as far as a fault lets it."""
        self.request_.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        end = 0 if self.command == "HEAD" else int(len(body) * fault.sent)
        for begin in range(0, end, _PIECE):
            piece = body[begin : min(begin + _PIECE, end)]
            self.request_.sent += len(piece)  # before a client that has all can ask for it
            self.wfile.write(piece)
            time.sleep(len(piece) / fault.rate)
            self.store.send(len(piece))
        if fault.sent < 1:
            self.close_connection = True

    def give(self, fault):
        """Answer with an object, or a range of it."""
        data, etag = self.store.data[self.name], self.store.etag(self.name)
        fault.after()
        headers = {"ETag": etag} if etag else {}
        if self.store.has_time:
            headers["Last-Modified"] = formatdate(1_600_000_000, usegmt=True)
        if self.headers.get("If-Match", etag) not in (etag, "*"):
            return self.reply(412, BODY)
        if self.command == "PUT":
            return self.reply(200, b"", headers)
        if self.headers.get("Range") is None:
            return self.reply(200, data, headers, fault)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        self.request_.begin = begin = int(first)
        end = min(int(last or len(data)) + 1, len(data))
        if begin >= len(data):
            return self.reply(416, BODY)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return self.reply(206, data[begin:end], headers, fault)

    def page(self):
        """Answer with a page of the objects of a bucket."""
        below, prefix = f"{self.name}/", self.asked.get("prefix", [""])[0]
        keys = sorted(each.removeprefix(below) for each in self.store.data if each.startswith(below))
        if not keys:
            return self.reply(404, BODY)
        after = max(
            self.asked.get(each, [""])[0] for each in ("continuation-token", "start-after", "marker", "startFrom")
        )
        keys = [each for each in keys if each.startswith(prefix) and each > after]
        page, is_azure = keys[: self.store.page], "comp" in self.asked
        more = escape(page[-1]) if len(page) < len(keys) else ""
        objects = ""
        for key in page:
            size, etag = len(self.store.data[below + key]), self.store.etag(below + key) or ""
            objects += (_AZURE if is_azure else _S3).format(
                escape(key), size, etag.strip('"') if is_azure else escape(etag)
            )
        text = f"<Blobs>{objects}</Blobs><NextMarker>{more}</NextMarker>"
        if not is_azure:
            text = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{objects}"
            text += f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
        return self.reply(200, f"<Found>{text}</Found>".encode())
