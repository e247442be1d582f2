"""A Hugging Face hub of one dataset on loopback: as much of its interface as fsspec's file system needs to read."""

import json
import threading
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "someone/corpus"


class Hub:
    """A server in threads; use it in a `with` statement. `files` has the bytes of each file of the dataset."""

    def __init__(self, files):
        self.files = files

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        files, prefix = self.server.hub.files, f"/datasets/{REPOSITORY}/resolve/main/"
        if path.startswith(f"/api/datasets/{REPOSITORY}/tree/main"):
            return self._json([_entry(name, data) for name, data in sorted(files.items())])
        if path.startswith(f"/api/datasets/{REPOSITORY}"):
            return self._json({"id": REPOSITORY, "sha": "0" * 40, "tags": [], "siblings": []})
        if not path.startswith(prefix) or path.removeprefix(prefix) not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = files[path.removeprefix(prefix)]
        headers = {"ETag": f'"{sha1(data).hexdigest()}"', "X-Repo-Commit": "0" * 40, "Accept-Ranges": "bytes"}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(int(last or len(data)) + 1, len(data))
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
            return self._send(206, data[int(first) : end], headers)
        return self._send(200, data, headers)

    do_HEAD = do_GET  # noqa: N815 - names of http.server

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
        files = self.server.hub.files
        self._json([_entry(name, files[name]) for name in asked if name in files])

    def _json(self, found):
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _send(self, status, data, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(name, data):
    return {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}
