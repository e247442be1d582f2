"""One test for each kind of store that others serve: indexed where it lies, opened, and read once in an epoch.

`make test-doors` installs an emulator of Azure (by npm), a server of FTP, and huggingface_hub. Emulators of GCS that
can be installed send no ETags, which obstore demands: the server of `tests/test_remote.py` has its interface.
"""

import json
import os
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mmapds
from mmapds.remote import client
from tests.support.hub import REPOSITORY, Hub
from tests.support.objects import Fault, Server

RECORDS = [{"n": number} for number in range(60)]
PARTS = {
    f"part-{part}.jsonl": "".join(f"{json.dumps(each)}\n" for each in RECORDS[20 * part :][:20]).encode()
    for part in range(3)
}
AZURITE = Path(__file__).resolve().parents[2] / "build" / "doors" / "node_modules" / ".bin" / "azurite-blob"


@contextmanager
def running(*command, port):
    """Run a server until the block ends; it is ready when it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def reads_an_epoch(pattern, out, tmp_path, roots=(), **options):
    """Index objects, open the index, and read an epoch; a second build has nothing to do."""
    given = {"cache": tmp_path / "cache", "storage_options": options}
    assert str(mmapds.build(pattern, out=out, length="n", **given, roots=roots)) == str(out)
    ds = mmapds.open(out, roots=roots, **given)
    sampler = mmapds.ChunkedSampler(ds, 100, mix_chunks=2)
    loader = mmapds.DataLoader(ds, 7, sampler=sampler, num_workers=2, collate_fn=list)
    assert sorted(each["n"] for batch in loader for each in batch) == list(range(60))
    assert list(mmapds.open(out, roots=roots, **given | {"cache": tmp_path / "another"})) == RECORDS
    with pytest.raises(mmapds.Error, match="none"):
        client.head(pattern.replace("part-*", "none"), options)


def upload(root, options, tmp_path):
    for name, data in PARTS.items():
        (tmp_path / name).write_bytes(data)
        client.put(f"{root}/{name}", options, path=str(tmp_path / name))


def test_azure(tmp_path):
    port, key = free_port(), "c2VjcmV0LWFuZC1sb25nLWVub3VnaA=="
    os.environ["AZURITE_ACCOUNTS"] = f"someone:{key}"
    command = AZURITE, "--inMemoryPersistence", "--blobPort", str(port), "--skipApiVersionCheck", "--silent"
    with running(*command, port=port):
        endpoint = f"http://127.0.0.1:{port}/someone"
        options = {"endpoint": endpoint, "account_name": "someone", "account_key": key, "allow_http": True}
        make_container(endpoint, key)
        upload("az://container/d", options, tmp_path)
        reads_an_epoch("az://container/d/part-*.jsonl", "az://container/d/corpus.mmx", tmp_path, **options)


def make_container(endpoint, key):
    """Make the container `container` by a signed request, which obstore has none for."""
    from azure.storage.blob import BlobServiceClient

    BlobServiceClient(endpoint, credential={"account_name": "someone", "account_key": key}).create_container(
        "container"
    )


def test_the_hub(tmp_path, monkeypatch):
    with Hub(PARTS) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        root = f"hf://datasets/{REPOSITORY}"
        reads_an_epoch(f"{root}/part-*.jsonl", tmp_path / "corpus.mmx", tmp_path, roots=[f"{root}/"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pyftpdlib
def test_another_protocol_by_fsspec(tmp_path):
    """FTP, of which fsspec knows neither tags nor listings in one request."""
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    shared = tmp_path / "shared"
    shared.mkdir()
    for name, data in PARTS.items():
        (shared / name).write_bytes(data)
    authorizer = DummyAuthorizer()
    authorizer.add_anonymous(str(shared))
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.address
    root = f"ftp://{host}"
    reads_an_epoch(f"{root}/part-*.jsonl", tmp_path / "corpus.mmx", tmp_path, roots=[f"{root}/"], port=port)
    server.close_all()


def test_aistore(tmp_path):
    """Its S3 door, by its documentation: a path below `/s3`, and a redirect of each read to the host with the data."""
    with Server() as proxy, Server() as target:
        proxy.data.update({f"s3/b/{name}": data for name, data in PARTS.items()})
        target.data.update({f"s3/b/{name}": data for name, data in PARTS.items()})
        for name in PARTS:
            proxy.faults[f"s3/b/{name}"] = Fault(307, {"Location": f"{target.endpoint}/s3/b/{name}?pid=1"})
        options = {**proxy.options, "endpoint": f"{proxy.endpoint}/s3"}
        reads_an_epoch("s3://b/part-*.jsonl", tmp_path / "corpus.mmx", tmp_path, roots=["s3://b/"], **options)
        assert set(target.downloads()) == set(proxy.faults)
