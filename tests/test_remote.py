"""Objects of a store: what each fault of a server gives, who downloads, and what the cache keeps."""

import math
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random, random, uniform
from urllib.parse import quote

import pytest
from xxhash import xxh3_128

from mmapds.errors import Error, SourceError, StaleIndexError
from mmapds.remote import client, transfer, urls
from mmapds.remote.cache import Cache, Item
from mmapds.remote.objects import Objects
from mmapds.remote.secrets import hidden
from mmapds.remote.stores import FailedError, RefusedError, _errors_of_obstore, store_of
from tests.support.objects import KEY, SECRET, Fault, Server
from tests.support.torture import HANGS, ends, forked

DATA = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


def emptied(server):
    for each in (server.data, server.etags, server.faults, server.requests):
        each.clear()
    server.page = 1000


def opened(server, scheme):
    """An empty server, the URL of its bucket, and storage options."""
    emptied(server)
    [found] = [(root, options) for root, options in server.stores.items() if root.startswith(f"{scheme}:")]
    return server, *found


@pytest.fixture(params=["s3", "gs", "az", "http"])
def store(request, server):
    return opened(server, request.param)


@pytest.fixture(params=["s3", "gs", "az"])
def lister(request, server):
    """One that lists its objects, and takes new ones."""
    return opened(server, request.param)


def download(url, options, path, **given):
    """Download an object as it is now; return its bytes."""
    head = client.head(url, options)
    path.write_bytes(b"")
    client.get(url, options, **{"path": str(path), "size": head.size, "etag": head.etag, "hash": "", **given})
    return path.read_bytes()


def wait_for(condition):
    """Wait until something holds."""
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, f"not within {HANGS} s"
        time.sleep(0.01)


def children():
    """The processes that this one started and that run."""
    return [int(each) for each in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def command_of(process):
    return Path(f"/proc/{process}/cmdline").read_text()


# ---- faults --------------------------------------------------------------------------------------------------------

PASSING = {
    "503 twice": Fault(503, times=2),
    "500": Fault(500, times=1),
    "429 with Retry-After": Fault(429, {"Retry-After": "1"}, times=1),
    "a short body": Fault(sent=0.6, times=1),
    "two short bodies": Fault(sent=0.5, times=2),
    "no byte at all": Fault(sent=0, times=1),
    "slow": Fault(rate=30e6),
    "a Retry-After that is no number": Fault(503, {"Retry-After": "\u00b2"}, times=1),
}
"""Faults that end."""


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_ends_changes_no_byte(store, tmp_path, fault):
    server, root, options = store
    server.data["b/a"] = DATA
    server.faults["b/a"] = replace(PASSING[fault])
    assert download(f"{root}/a", options, tmp_path / "a") == DATA
    assert server.sent()["b/a"] < len(DATA) + (2 << 20), "a body that broke was read again from its beginning"


LASTING = {
    "403": (Fault(403), SourceError, "403"),
    "401": (Fault(401), SourceError, "401"),
    "404": (Fault(404), SourceError, "404"),
    "404 at the first look": (Fault(404, method="HEAD"), SourceError, "404"),
    "another object after the first look": (Fault(method="HEAD"), StaleIndexError, "STALE"),
    "another object in the middle": (Fault(sent=0.5, times=1), StaleIndexError, "STALE"),
    "503": (Fault(503), SourceError, "503"),
    "429": (Fault(429, {"Retry-After": "0"}), SourceError, "429"),
    "a body that is always short": (Fault(sent=0.4), SourceError, ""),
    "no byte at all": (Fault(sent=0), SourceError, ""),
    "an answer that is no object": (Fault(204), SourceError, ""),
}
"""Faults that stay, the error that each gives, and what it names besides the URL."""


def test_a_fault_that_stays_is_an_error_that_names_the_url_and_the_status(server, tmp_path):
    """All at once, as requests are tried again for seconds; those of GCS and Azure by the same code as those of S3."""
    emptied(server)
    expected = {}
    for number, (root, options) in enumerate(server.stores.items()):
        is_tried = not root.startswith(("gs:", "az:"))
        for fault, (given, kind, text) in LASTING.items():
            if not is_tried and (given.status in (429, 503) or (given.times == math.inf and given.sent < 1)):
                continue
            name = f"{number}-{fault}"
            server.data[f"b/{name}"] = DATA
            change = partial(server.data.__setitem__, f"b/{name}", bytes(len(DATA)))
            server.faults[f"b/{name}"] = replace(given, after=change if kind is StaleIndexError else given.after)
            expected[f"{root}/{quote(name) if not options else name}"] = options, kind, text
        expected[f"{root}/none"] = options, SourceError, "404"
    nowhere = "http://127.0.0.1:1"
    expected["s3://b/a"] = {**server.options, "endpoint": nowhere}, SourceError, ""
    expected[f"{nowhere}/a"] = expected["http://nowhere.invalid/a"] = {}, SourceError, ""

    def outcome(number, url, options):
        try:
            return len(download(url, options, tmp_path / str(number)))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(expected)) as pool:
        found = list(pool.map(outcome, range(len(expected)), expected, [each[0] for each in expected.values()]))
    wrong = {
        url: repr(error)
        for (url, (_, kind, text)), error in zip(expected.items(), found, strict=True)
        if not isinstance(error, kind) or not re.fullmatch(rf"{re.escape(url)}: .*{text}.*", str(error))
    }
    assert not wrong
    assert not re.search(f"{SECRET}|{KEY}|Signature|by the server", repr(found))


@pytest.mark.parametrize("etag", [None, '"same"'])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_other_bytes_of_the_same_size_and_etag_are_stale_if_there_is_a_hash(server, tmp_path, scheme, etag):
    server, root, options = opened(server, scheme)
    server.data["b/a"], server.etags["b/a"] = DATA, etag
    good = xxh3_128(DATA).hexdigest()
    assert download(f"{root}/a", options, tmp_path / "a", hash=good) == DATA
    server.data["b/a"] = bytes(len(DATA))
    with pytest.raises(StaleIndexError, match=rf"^{root}/a: STALE: "):
        download(f"{root}/a", options, tmp_path / "a", hash=good)


def test_a_missing_bucket_is_an_error_and_an_empty_directory_is_not(lister):
    server, root, options = lister
    server.data["b/a"] = b""
    assert client.listing(f"{root}/none/", options) == []
    with pytest.raises(SourceError, match=rf"^{root}none/: .*404"):
        client.listing(f"{root}none/", options)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_http_redirects_are_followed_to_the_same_host_and_not_to_a_private_address(server, tmp_path, status):
    server.data.update({"b/a": DATA, "b/new": DATA, "b/inside": DATA})
    root = f"{server.endpoint}/b"
    for method in ("GET", "HEAD"):
        server.faults["b/a"] = Fault(status, {"Location": f"{root}/new"}, method=method)
        assert download(f"{root}/a", {}, tmp_path / "a") == DATA
    for there in (root.replace("127.0.0.1", "localhost"), "file:///etc", "ftp://127.0.0.1"):
        server.faults["b/a"], before = (
            Fault(status, {"Location": f"{there}/inside"}, method="HEAD"),
            len(server.requests),
        )
        with pytest.raises(SourceError, match=rf"^{re.escape(root)}/a: .*(?i:redirect).*"):
            download(f"{root}/a", {}, tmp_path / "a")
        assert len(server.requests) == before + 1


# ---- names and listings --------------------------------------------------------------------------------------------

NAMES = [
    "a",
    "d/a",
    "d/a b",
    "d/ü",
    "d/a%20b",
    "d/a+b",
    "d/a&b=c;d",
    "d/e/a",
    "d/'a'",
    "d/a@b",
    "d/[a]",
    "D/a",
    "d.x/a",
    "~",
]


def test_every_name_is_listed_and_read(lister, tmp_path):
    server, root, options = lister
    server.data.update({f"b/{name}": name.encode() for name in NAMES})
    server.page = 3
    found = client.listing(f"{root}/", options)
    assert [(each.url, each.size) for each in found] == [
        (f"{root}/{name}", len(name.encode())) for name in sorted(NAMES)
    ]
    below = [each for each in found if each.url.startswith(f"{root}/d/")]
    assert client.listing(f"{root}/d/", options) == below
    for each in found:
        assert client.head(each.url, options) == each
        data = download(each.url, options, tmp_path / "a", size=each.size, etag=each.etag)
        assert data == each.url.removeprefix(f"{root}/").encode()


def test_a_name_is_read_over_http_as_it_is_or_quoted(server, tmp_path):
    server.data.update({f"b/{name}": name.encode() for name in NAMES})
    for name in NAMES:
        url = f"{server.endpoint}/b/{quote(name)}"
        assert download(url, {}, tmp_path / "a") == name.encode()


def test_a_listing_of_ten_thousand_objects_says_how_far_it_is(server):
    emptied(server)
    server.data.update({f"b/{number:05}": b"" for number in range(10_000)})
    told = []
    assert len(client.listing("s3://b/", server.options, told.append)) == 10_000
    assert told == list(range(1000, 10_001, 1000))


@pytest.mark.parametrize("size", [0, 1, 5])
def test_small_and_empty_objects(store, tmp_path, size):
    server, root, options = store
    server.data["b/a"] = DATA[:size]
    assert download(f"{root}/a", options, tmp_path / "a") == DATA[:size]


def test_a_file_is_written_and_read_back(lister, tmp_path):
    server, root, options = lister
    (tmp_path / "a").write_bytes(DATA)
    head = client.put(f"{root}/d/a", options, path=str(tmp_path / "a"))
    assert head == client.head(f"{root}/d/a", options)
    assert server.data["b/d/a"] == DATA
    server.faults["b/d/a"] = Fault(403, method="PUT")
    with pytest.raises(SourceError, match=rf"^{root}/d/a: .*403"):
        client.put(f"{root}/d/a", options, path=str(tmp_path / "a"))


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_other_protocols_are_read_by_fsspec(tmp_path, scheme):
    store, root = store_of(f"{scheme}://b", {}), f"{scheme}://{tmp_path}/b" if scheme == "local" else f"{scheme}://b"
    for name in ("d/a", "d/b"):
        (tmp_path / "b" / "d").mkdir(parents=True, exist_ok=True)
        (tmp_path / "a").write_bytes(DATA)
        store.write(f"{root}/{name}", str(tmp_path / "a"))
    assert [(url, head.size) for url, head in store.listing(f"{root}/d/")] == [
        (f"{root}/d/{name}", len(DATA)) for name in "ab"
    ]
    head = store.head(f"{root}/d/a")
    assert b"".join(store.read(f"{root}/d/a", 5, len(DATA), head)) == DATA[5:]
    with pytest.raises(RefusedError, match="404") as error:
        store.head(f"{root}/none")
    assert error.value.kind == "missing"
    with pytest.raises(RefusedError, match="412") as error:
        list(store.read(f"{root}/d/a", 0, 5, head._replace(etag="another")))
    assert error.value.kind == "stale"


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal"])
def test_without_credentials_the_error_says_what_to_set(host):
    """The client then asks for the role of the machine, which has none."""
    with pytest.raises(RefusedError, match="AWS_SKIP_SIGNATURE") as error, _errors_of_obstore():
        raise OSError(f"Generic S3 error: Error performing PUT http://{host}/latest/api/token in 1ms - HTTP error")
    assert error.value.kind == "denied"


REFUSED = {
    "http://user:pass-word@h/a": "credentials",
    "s3://key:pass-word@b/a": "credentials",
    "https://h/a?X-Amz-Signature=pass-word": "query",
    "https://h/a#pass-word": "query",
    "s3://b/../a": "'..'",
    "s3://b/d/../../a": "'..'",
    "s3://b/./a": "'.'",
    "s3://b/d//a": "'//'",
    "s3://b/d\\a": "backslash",
    "s3://b/a\n": "control",
    "s3://b/a\x1b[2J": "control",
    "s3://b/a\0": "control",
    "http://h/d/%2e%2e/a": "'..'",
    "http://h/d/%252e%252e/a": "'..'",
    "s3://b/d/%2e%2e/a": "'..'",
    "http://h/d/%2ehidden": "escapes",
    "http://h/d%2fa": "escapes",
    "http://h/d/%5ca": "backslash",
    "http://h/a%0a": "control",
    "file://h/a": "absolute",
    "s3:///a": "bucket",
    "https:///a": "host",
}


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_is_refused_and_what_may_be_secret_is_not_repeated(url):
    with pytest.raises(SourceError, match=REFUSED[url]) as error:
        urls.checked(url)
    assert "pass-word" not in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("s3://b/*", 2),
        ("s3://b/d/*", 9),
        ("s3://b/**", 14),
        ("s3://b/d/a?b", 3),
        ("s3://b/*/a", 3),
        ("s3://b/d/[!a]", 1),
    ],
)
def test_patterns_stay_within_a_directory_but_for_two_stars(pattern, fits):
    assert urls.is_pattern(pattern)
    matching = urls.matcher(pattern)
    found = [name for name in NAMES if matching.match(f"s3://b/{name}")]
    assert len(found) == fits, found
    assert all(f"s3://b/{name}".startswith(urls.prefix_of(pattern)) for name in found)


# ---- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_REGION", "https_proxy"])
def test_a_variable_with_a_line_end_is_named_and_not_shown(server, monkeypatch, name):
    """As secrets are when `echo` made them."""
    monkeypatch.setenv(name, f"{SECRET}\n")
    with pytest.raises(Error, match=rf"^{name}: expected a variable of one line") as error:
        client.head("s3://b/a", server.options)
    assert SECRET not in str(error.value)


WRONG_OPTIONS = {
    "a header": ({"headers": {"Authorization": f"Bearer {SECRET}\n"}}, "['headers']['Authorization']: expected text"),
    "a character that headers lack": ({"headers": {"X": f"{SECRET}…"}}, "['headers']['X']: expected text"),
    "a key": ({"secret_access_key": f"{SECRET}\r"}, "['secret_access_key']: expected text of one line"),
    "a value that is none of JSON": ({"token": {SECRET}}, ": expected values of JSON"),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_an_option_that_cannot_be_sent_is_refused_when_it_is_given(case):
    options, message = WRONG_OPTIONS[case]
    with pytest.raises(Error, match=re.escape(f"storage_options{message}")) as error:
        Objects("cache", None, options)
    assert SECRET not in str(error.value)


def test_a_message_of_a_store_shows_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "long-and-secret")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    options = {"headers": {"Authorization": f"Bearer {SECRET}"}, "endpoint": "http://store:9000"}
    text = f"eu-north-1 http://store:9000 refused 'Bearer {SECRET}' and long-and-secret"
    assert hidden(text, options) == "eu-north-1 http://store:9000 refused '***' and ***"
    options = {"headers": {"Authorization": "Bearer hush-hush-hush"}}
    assert hidden("found 'hush-hush-hush' (sent back alone)", options) == "found '***' (sent back alone)"


# ---- the cache -----------------------------------------------------------------------------------------------------

SIZE, COUNT = 300_000, 12
KILLS = 10
"""Readers that are killed in `make test`; nightly, twenty times as many."""


@pytest.fixture
def corpus(server):
    """A server with objects of a bucket; the items of a cache that stand for them."""
    emptied(server)
    server.data.update({f"b/part-{number:02}": bytes([number]) * SIZE for number in range(COUNT)})
    return server, [Item(*head) for head in client.listing("s3://b/", server.options)]


def read_all(server, items, directory, limit, seed):
    """Read all objects in an order of its own, and compare their bytes."""
    objects, random = Objects(str(directory), limit, server.options), Random(seed)
    for item in random.sample(items, len(items)):
        data = b""
        while not data:
            with suppress(FileNotFoundError), open(objects.fetch(item), "rb") as file:  # evicted just now
                data = file.read()
        assert data == server.data[item.url.removeprefix("s3://")]


def joined(child, ending):
    assert ends(ending, HANGS), f"it runs for {HANGS} s"
    os.close(ending)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files(directory):
    """The files of a cache but for its lock, and their sizes."""
    found = {}
    with os.scandir(directory) as entries:
        for file in entries:
            with suppress(FileNotFoundError):  # renamed or evicted meanwhile
                found |= {} if file.name.startswith(".") else {file.name: file.stat().st_size}
    return found


def test_processes_and_threads_download_each_object_once(corpus, tmp_path):
    server, items = corpus
    server.faults.update({item.url.removeprefix("s3://"): Fault(delay=0.05) for item in items})
    readers = [forked(partial(read_all, server, items, tmp_path, None, seed)) for seed in range(4)]
    objects = Objects(str(tmp_path), None, server.options)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(objects.fetch, items * 2))) == COUNT
    assert [joined(*reader) for reader in readers] == [0] * 4
    read_all(server, items, tmp_path, None, 0)  # another job
    assert {server.downloads()[f"b/part-{number:02}"] for number in range(COUNT)} == {1}
    assert list(files(tmp_path).values()) == [SIZE] * COUNT


@pytest.mark.parametrize("kills", [KILLS, pytest.param(20 * KILLS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("limit", [None, 5 * SIZE])
def test_readers_that_are_killed_leave_right_objects_and_nothing_else(corpus, tmp_path, kills, limit):
    """Three at a time read one cache, which is cleared when it is full. The limit holds all the time."""
    server, items = corpus
    server.faults.update({item.url.removeprefix("s3://"): Fault(rate=5e6) for item in items})
    random, readers, largest, killed, clears = Random(kills), [], 0, 0, 0
    while readers or killed < kills:
        while killed < kills and len(readers) < 3:
            readers.append(forked(partial(read_all, server, items, tmp_path, limit, random.random())))
        largest = max(largest, sum(files(tmp_path).values()))
        if len(files(tmp_path)) == COUNT:
            clears += bool(Cache(str(tmp_path)).clear())
        reader = random.choice(readers)
        if killed < kills and not ends(reader[1], random.uniform(0, 0.6)):
            os.kill(reader[0], signal.SIGKILL)
            killed += 1
        if ends(reader[1], 0.05):
            readers.remove(reader)
            assert joined(*reader) in (0, -signal.SIGKILL)
    assert not [entry for entry in Cache(str(tmp_path)).entries() if entry.is_part]
    read_all(server, items, tmp_path, limit, 0)
    assert set(files(tmp_path)) <= {item.name for item in items}
    if limit is None:
        downloads = sum(server.downloads()[item.url.removeprefix("s3://")] for item in items)
        assert downloads <= (1 + clears) * COUNT + killed, "an object came twice that was not under way"
    else:
        assert largest <= limit


def read_again_and_again(server, items, directory, stop):
    """Read all objects until a file is there; Ctrl-C only makes it begin anew."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while not stop.exists():
        with suppress(KeyboardInterrupt):
            read_all(server, items, directory, 5 * SIZE, random())


@pytest.mark.parametrize("interrupts", [40, pytest.param(500, marks=pytest.mark.nightly)])
def test_readers_that_are_interrupted_leave_no_lock(corpus, tmp_path, interrupts):
    """Two at a time: one would wait for ever for what the other has left."""
    server, items = corpus
    server.faults.update({item.url.removeprefix("s3://"): Fault(rate=20e6) for item in items})
    cache, stop = tmp_path / "cache", tmp_path / "stop"
    readers = [forked(partial(read_again_and_again, server, items, cache, stop)) for _ in range(2)]
    wait_for(lambda: cache.exists() and len(files(cache)) > 2)
    for number in range(interrupts):
        os.kill(readers[number % 2][0], signal.SIGINT)
        time.sleep(uniform(0.005, 0.05))
    stop.touch()
    assert [joined(*reader) for reader in readers] == [0, 0]
    assert not [entry for entry in Cache(str(cache)).entries() if entry.is_part]
    read_all(server, items, cache, 5 * SIZE, 0)


def test_the_process_that_downloads_ends_with_its_parent(corpus, tmp_path):
    server, items = corpus
    server.faults["b/part-00"] = Fault(delay=30)
    child, ending = forked(lambda: Objects(str(tmp_path), None, server.options).fetch(items[0]))
    wait_for(lambda: len(server.requests) > 1)
    os.kill(child, signal.SIGKILL)
    assert joined(child, ending) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        wait_for(lambda: os.killpg(child, 0))


def test_a_download_process_that_is_killed_is_started_again(corpus, tmp_path):
    server, items = corpus
    objects = Objects(str(tmp_path), None, server.options)
    server.faults["b/part-00"] = Fault(delay=0.5)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(objects.fetch, items[0])
        wait_for(lambda: len(server.requests) > 1)
        [child] = [each for each in children() if "transfer" in command_of(each)]
        os.kill(child, signal.SIGKILL)
        assert Path(found.result()).read_bytes() == server.data["b/part-00"]


def test_a_cache_never_removes_what_it_did_not_download(corpus, tmp_path):
    server, items = corpus
    outside, cache = tmp_path / "outside", tmp_path / "cache"
    cache.mkdir()
    outside.write_bytes(b"mine")
    foreign = {"notes.txt": b"a", "a.part": b"b", f"{'0' * 31}-a": b"c"}
    for each, data in foreign.items():
        (cache / each).write_bytes(data)
    (cache / f"{'0' * 32}-link").symlink_to(outside)
    (cache / f"{'1' * 32}-directory").mkdir()
    read_all(server, items, cache, 3 * SIZE, 0)
    removed = Cache(str(cache)).clear()
    assert {entry.name for entry in removed} < {item.name for item in items}
    assert outside.read_bytes() == b"mine"
    assert {each: (cache / each).read_bytes() for each in foreign} == foreign
    assert len(os.listdir(cache)) == len(foreign) + 3  # the link, the directory and the lock


def test_a_server_may_ask_to_wait_for_a_minute_at_most(monkeypatch):
    waits = []
    monkeypatch.setattr(transfer.time, "sleep", waits.append)

    def fails():
        raise FailedError("HTTP 503", 3600.0)

    with pytest.raises(FailedError):
        transfer._again(fails)
    assert waits == [60.0] * 5


def test_names_are_cut_by_bytes_and_none_is_that_of_a_part(server, tmp_path):
    emptied(server)
    names = ["part.part", "名" * 300, ".part", "a" * 300 + ".part"]
    server.data.update({f"b/{name}": name.encode() for name in names})
    objects = Objects(str(tmp_path), None, server.options)
    for head in client.listing("s3://b/", server.options):
        path = Path(objects.fetch(Item(*head)))
        assert path.read_bytes().decode() in names
        assert Objects(str(tmp_path), None, server.options).cache.entries()
    assert sum(server.downloads().values()) - server.downloads()["b"] == len(files(tmp_path)) == len(names)


def test_a_lower_limit_holds_from_the_start(corpus, tmp_path):
    server, items = corpus
    read_all(server, items, tmp_path, None, 0)
    assert len(files(tmp_path)) == COUNT
    assert Objects(str(tmp_path), 3 * SIZE, server.options).cache.entries()
    assert len(files(tmp_path)) == 3


def test_a_limit_that_is_too_small_is_an_error_with_the_number(corpus, tmp_path):
    server, items = corpus
    objects = Objects(str(tmp_path), SIZE - 1, server.options)
    with pytest.raises(Error, match=rf"cache_bytes = 299,999, expected 300,000 or more for {items[0].url}"):
        objects.fetch(items[0])
    assert not files(tmp_path)


def test_a_full_disk_is_an_error_that_names_the_object(corpus):
    server, items = corpus
    with pytest.raises(SourceError, match=rf"^{items[0].url}: .*cache; free space, or give a smaller cache_bytes$"):
        client.get(items[0].url, server.options, path="/dev/full", size=SIZE, etag=items[0].etag, hash="")


@pytest.mark.parametrize(("fault", "kind"), [(Fault(403), SourceError), (Fault(412), StaleIndexError)])
def test_a_download_that_fails_leaves_no_file(corpus, tmp_path, fault, kind):
    server, items = corpus
    server.faults["b/part-00"] = fault
    with pytest.raises(kind):
        Objects(str(tmp_path), None, server.options).fetch(items[0])
    assert not files(tmp_path)


def test_neither_the_cache_nor_a_process_list_shows_a_key(corpus, tmp_path):
    server, items = corpus
    Objects(str(tmp_path), None, server.options).fetch(items[0])
    [child] = [each for each in children() if "transfer" in command_of(each)]
    assert SECRET not in command_of(child) + Path(f"/proc/{child}/environ").read_text()
    assert not [name for name in os.listdir(tmp_path) if SECRET.encode() in (tmp_path / name).read_bytes()]
