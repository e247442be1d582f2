"""Pages of reports: whole, safe whatever samples hold, the same bytes each time, and without a script or a network."""

import copy
import json
import os
import re
import shlex
from pathlib import Path

import pytest

import mmapds
import mmapds.report as report_room
from mmapds.command.main import main
from mmapds.report import report
from mmapds.report.page import page
from mmapds.report.style import CSS
from mmapds.report.verdicts import FAIR, GOOD, POOR, percent, verdicts
from tests.support.commands import mmapds as command
from tests.support.commands import python, run
from tests.support.docs import blocks
from tests.support.messages import check
from tests.support.reports import Page, words

HOSTILE = [
    "</script><script>alert(1)</script>",
    "</pre></details></style><img src=x onerror=alert(1)>",
    "<!-- ]]> --> &amp; &#60;b&#62; \" ' `",
    "\x00\x01\x08\x1b[31m\x7f\x9b\u202e\u2028\ufeff",
    "tabs\tand\nlines\r\n",
    "</SCRIPT ><svg onload=alert(1)>",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    lengths = [1 + i * 7919 % 300 for i in range(600)]
    texts = [HOSTILE[i % len(HOSTILE)] for i in range(600)]
    return words(tmp_path_factory.mktemp("page") / "train.jsonl", lengths, texts)


@pytest.fixture(scope="module")
def facts(path):
    return report(path, max_tokens=1024, ranks=4, compare=["pack=512", "batch_size=8,chunk_size=4"])


@pytest.fixture(scope="module")
def made(facts):
    return page(facts)


def test_a_page_is_one_file_without_a_script_or_an_address(made):
    found = Page(made)
    assert not found.names() & {"script", "iframe", "object", "embed", "link", "img", "base", "form"}
    assert not [name for _, each in found.tags for name in each if name.startswith("on")]
    outside = set(re.findall(r"(?:\w+:|[\"'(\s])//[\w.]+[\w/.]*", re.sub(r'base64,[^"]*', "", made)))
    assert outside == {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}  # names, which nobody loads
    assert "@import" not in made
    (policy,) = (each["content"] for name, each in found.tags if name == "meta" and "http-equiv" in each)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_what_samples_hold_is_text(made, path):
    """Records with markup, and with characters that steer terminals and pages."""
    text = Page(made).text
    assert "</script><script>alert(1)</script>" in text
    assert "</pre></details></style><img src=x onerror=alert(1)>" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028\ufeff]", made)
    assert "\\u001b[31m" in text
    raw = page(report(path, max_tokens=1024, decode="text"))
    assert "alert(1)" in Page(raw).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028\ufeff]", raw)


def test_names_of_files_and_columns_are_text_too(tmp_path):
    name = "<b>&'\"\x1b.jsonl"
    path = words(tmp_path / name, range(1, 40))
    found = Page(page(report(path, ranks=1)))
    assert "<b>&'\"\\u001b.jsonl" in found.text
    assert "b" not in {tag for tag, each in found.tags if not each} - {"b"} or "<b>&" not in found.source


def test_without_samples_a_page_holds_nothing_of_a_record(path):
    facts = report(path, max_tokens=1024, samples=False)
    assert facts["samples"] is None
    made = page(facts)
    assert "alert" not in made
    assert "alert" not in json.dumps(facts)
    assert "samples" not in Page(made).ids


def test_ids_come_once_and_links_lead_somewhere(made):
    found = Page(made)
    assert len(found.ids) == len(set(found.ids))
    assert found.references()
    assert not set(found.references()) - set(found.ids)


def test_charts_have_the_colours_of_the_page_and_no_font_of_their_own(made):
    found = Page(made)
    assert len(found.charts()) >= 2 + 3 * (3 + 2 + 1)
    assert not re.findall(r"#[0-9a-f]{6}", made[made.index("</style>") :])
    used = set(re.findall(r"var\(--(\w+)\)", made))
    light, dark = CSS.split("@media (prefers-color-scheme: dark)")
    for style in (light, dark[: dark.index("* {")]):
        assert used <= set(re.findall(r"--(\w+):", style))
    assert "font-family" not in made[made.index("</style>") :]


def test_every_chart_says_what_it_shows(made, facts):
    found = Page(made)
    assert len(set(found.charts())) == len(found.charts())
    for title in ("How lengths are spread", "Where records come from", "Cost of each rank"):
        assert any(label.startswith(title) for label in found.charts())
    for plan in facts["plans"]:
        assert any(label.endswith(plan["title"]) for label in found.charts())


def test_the_bytes_are_the_same_in_every_process(path, tmp_path):
    code = f"from mmapds.report import report; report({path!r}, 'out.html', max_tokens=1024, force=True)"
    pages = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "MPLBACKEND": "TkAgg", "SOURCE_DATE_EPOCH": seed}
        python(code, cwd=tmp_path, env=environment)
        pages.append((tmp_path / "out.html").read_bytes())
    assert pages[0] == pages[1]
    assert len(pages[0]) < 400_000


def test_the_page_has_the_numbers_of_the_json(made, facts):
    text = Page(made).text
    assert f"{facts['coverage']['records']:,}" in text
    assert f"{facts['lengths']['total']:,}" in text
    for plan in facts["plans"]:
        batches = plan["batches"]
        for number in (f"{batches['steps']:,}", f"{batches['batches']:,}", percent(batches["cost"]["waiting"])):
            assert number in text
        for gaps in plan["shuffle"]["gaps"].values():
            assert f"{gaps['distance']:.3f} ({gaps['bound']:.3f})" in text
        assert f"{plan['reads']['amplification']:.1f}" in text
    for row in facts["lengths"]["budgets"]:
        assert f"{row['budget']:,}" in text


def test_verdicts_say_what_is_good_and_what_is_bad(facts, path):
    found = verdicts(facts)
    assert [each.level for each in found] == sorted((each.level for each in found), key=(POOR, FAIR, GOOD).index)
    texts = {each.text: each.level for each in found}
    assert texts["Every source is what it was when it was indexed."] == GOOD
    chunks = next(text for text in texts if text.startswith("Batches of 8, chunks of 4: not all records are mixed "))
    assert texts[chunks] == FAIR
    clumped = copy.deepcopy(facts)
    clumped["plans"][2]["shuffle"]["density"]["dispersion"] = 9.0
    assert any(each.level == POOR and "far from a random choice" in each.text for each in verdicts(clumped))
    packs = next(text for text in texts if text.startswith("Packs of 512: packs are "))
    assert texts[packs] == FAIR  # 98.0 %, and a little more is left empty than good plans leave
    with_dropped = {each.text: each.level for each in verdicts(report(path, max_tokens=200, samples=False))}
    left_out = next(text for text in with_dropped if "left out" in text)
    assert "over the budget" in left_out
    assert with_dropped[left_out] == POOR


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.00 %"),
        (1e-6, "under 0.01 %"),
        (0.0123, "1.23 %"),
        (0.0999, "9.99 %"),
        (0.09996, "10.0 %"),
        (0.4567, "45.7 %"),
        (0.9999, "100 %"),
        (1, "100 %"),
    ],
)
def test_shares_are_shown_in_three_digits(share, text):
    assert percent(share) == text


@pytest.mark.parametrize("lengths", [[5] * 30, [1], [1, 10**6], list(range(1, 40))])
def test_odd_lengths_make_a_page_too(lengths, tmp_path):
    path = words(tmp_path / "odd.jsonl", lengths)
    for plan in ({"max_tokens": 2 * 10**6}, {"pack": 10**6}, {"batch_size": 3}, {"batch_size": 3, "chunk_size": 2}):
        Page(page(report(path, ranks=1, **plan)))


@pytest.mark.parametrize(
    "lengths", [[2**64 - 1] + [5] * 200, [2**63 - 1, 2**62, 3], [2**53, 2**53 + 1, 2**53 + 2], [2**62] * 5]
)
def test_large_lengths_make_a_page_too(lengths, write):
    """Also those that float64 cannot tell apart."""
    path = write([{"n": n} for n in lengths])
    mmapds.build(path, length="n")
    found = Page(page(report(path, ranks=1)))
    assert "How lengths are spread" in found.text
    assert "nan" not in found.source


def test_a_page_says_which_batches_are_measured(tmp_path):
    """Of 19 batches, 2 ranks have 9 whole steps."""
    path = words(tmp_path / "some.jsonl", range(1, 40))
    facts = report(path, ranks=2, max_tokens=64)
    (plan,) = facts["plans"]
    batches, measured = plan["batches"]["batches"], plan["batches"]["measured"]["batches"]
    assert batches == measured + 1
    assert f"are measured on {measured} of {batches} batches. " in Page(page(facts)).text
    assert "are measured on" not in Page(page(report(path, ranks=1, max_tokens=64))).text


def test_an_empty_dataset_and_stale_sources_make_a_page_too(write, tmp_path):
    empty = write(b"", "empty.jsonl")
    mmapds.build(empty)
    assert "0 records" in Page(page(report(empty))).text
    path = words(tmp_path / "stale.jsonl", range(1, 40))
    with open(path, "a") as file:
        file.write("{}\n")
    found = Page(page(report(path, ranks=1)))
    assert "1 of 1 source changed or cannot be read; index them again." in found.text
    assert "reads" not in found.ids


def test_a_page_says_where_sizes_include_records_left_out(write):
    whole, path = write(b"{}\n{}\n", "whole.jsonl"), write(b"{}\nbad\n{}\nbad\n")
    mmapds.build(whole)
    with pytest.warns(UserWarning, match="2 such lines are left out"):
        mmapds.build(path, bad="skip")
    text = "sizes of records, with records behind them that were left out; "
    assert text not in Page(page(report(whole, ranks=1))).text
    assert text in Page(page(report(path, ranks=1))).text


def test_the_command_writes_a_page_and_says_so(path, tmp_path):
    ran = run("-m", "mmapds.report", path, "--max-tokens", "1024", "--ranks", "4", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "report.html: train.jsonl, 600 records; token budget 1,024\n"
    options = ["--pack", "512", "--compare", "max_tokens=1024,ranks=2", "--no-samples", "--quiet", "-o", "packs.html"]
    ran = command("report", path, *options, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert Page((tmp_path / "packs.html").read_text()).text.count("packs of 512 beside token budget 1,024") == 1
    assert sorted(os.listdir(tmp_path)) == ["packs.html", "report.html"]


def test_no_page_replaces_what_it_is_on(path):
    index = f"{path}.mmx"
    before = [Path(each).read_bytes() for each in (path, index)]
    for given in (path, index, os.path.dirname(path)):
        for out in (path, index):
            with pytest.raises(
                mmapds.Error, match=f"^{out}: the page to write is a source or an index; give "
            ) as error:
                report(given, out, force=True)
            check(str(error.value))
    assert [Path(each).read_bytes() for each in (path, index)] == before


def test_a_page_that_is_there_stays(path, tmp_path):
    place = tmp_path / "report.html"
    place.write_text("mine")
    ran = run("-m", "mmapds.report", path, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "report.html: expected a name that is free, found a file; give another place with -o FILE, or replace it with "
        "--force\n"
    )
    with pytest.raises(
        mmapds.Error, match=r"; give another place with out=\.\.\., or replace it with force=True$"
    ) as error:
        report(path, place)
    check(str(error.value))
    assert place.read_text() == "mine"
    assert run("-m", "mmapds.report", path, "--force", cwd=tmp_path).returncode == 0
    first = place.read_text()
    report(path, place, force=True)
    assert place.read_text() == first != "mine"


def test_json_has_the_facts_and_needs_no_matplotlib(path, tmp_path):
    blocked = "import sys; sys.modules['matplotlib'] = None; from mmapds.command.main import main; sys.exit(main())"
    ran = run("-c", blocked, "report", path, "--max-tokens", "1024", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == report(path, max_tokens=1024)
    assert os.listdir(tmp_path) == []
    ran = run("-c", blocked, "report", path, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "mmapds.report needs matplotlib; run: pip install 'mmapds[report]' (or give --json, which needs none)\n"
    )
    both = run("-m", "mmapds.report", path, "--json", "-o", "both.html", cwd=tmp_path)
    assert json.loads(both.stdout)["plans"][0]["title"] == "batches of 32"
    assert (tmp_path / "both.html").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--max-tokens", "0"], 2, "max_tokens = 0, expected an integer of 1 or more"),
        (["--compare", "pack"], 2, "compare: pack: expected an integer below 2**63, found ''"),
        (["--pack", "8", "--batch-size", "8"], 2, "batch_size = 8, expected None beside pack; give one of the two"),
        (["--ranks", "1000"], 1, "ranks = 1000, expected 1 to 600, the number of records"),
        (
            ["-o", "absent/report.html"],
            1,
            "absent/report.html: cannot write the report here (no such file or directory); give",
        ),
    ],
)
def test_mistakes_are_one_line(path, tmp_path, arguments, status, message, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", path, *arguments]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_page_that_cannot_be_finished_leaves_nothing(path, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(mmapds.Error, match=r"cannot write the report here \(no space left on device\)"):
        report(path, tmp_path / "report.html")
    assert os.listdir(tmp_path) == []


def test_the_page_of_reports_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words(tmp_path / "train.jsonl", [1 + i * 7919 % 1500 for i in range(400)])
    for line in "".join(blocks("docs/report.md", "sh")).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "mmapds"
        assert main(arguments) == 0, line
    (code,) = blocks("docs/report.md", "python")
    exec(code, {})
    assert capsys.readouterr().out.splitlines()[0].startswith("report.html: train.jsonl, 400 records")
    assert {"plans.html", "report.html"} <= set(os.listdir(tmp_path))


RUN = {"batches": 10, "records": 80, "seconds": 4.0, "wait": 1.0, "wait_p50": 0.1, "wait_p99": 0.3, "wait_max": 0.4}


def test_a_training_run_adds_what_its_ranks_waited_for(path, tmp_path):
    """As `loader.stats()` gives it: an object, a list, or an object on each line."""
    one = [{"rank": 0, **RUN, "stalls": 0}, {"rank": 0, **RUN, "wait": 0.2, "wait_max": 0.9, "stalls": 1}]
    one[0]["host"] = "a\u2028b\x85c"  # which are breaks of lines, but not of JSON's
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in one)
    (tmp_path / "rank0.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "rank1.json").write_text(json.dumps({"rank": 1, "epoch": 3, **RUN, "stalls": 0}))
    files = [tmp_path / "rank0.jsonl", tmp_path / "rank1.json"]
    facts = report(path, ranks=2, waits=files, samples=False)
    assert facts["training"]["waiting"] == pytest.approx((1.0 + 0.2 + 1.0) / 12)
    first, second = facts["training"]["ranks"]
    assert (first["passes"], first["seconds"], first["wait"]) == (2, 8.0, 1.2)
    assert (first["wait_max"], first["stalls"], first["waiting"]) == (0.9, 1, pytest.approx(0.15))
    assert (second["rank"], second["batches"]) == (1, 10)
    found = Page(page(facts))
    assert "The training run waited 18.3 % of its time for data." in found.text
    assert "training" in found.ids


def test_a_loader_writes_the_waits_that_a_report_takes(path, tmp_path):
    loader = mmapds.DataLoader(mmapds.open(path), batch_size=50, collate_fn=list)
    assert len(list(loader)) == 12
    (tmp_path / "waits.json").write_text(json.dumps({"rank": 0, **loader.stats()}))
    (rank,) = report(path, ranks=2, waits=tmp_path / "waits.json", samples=False)["training"]["ranks"]
    assert (rank["batches"], rank["records"]) == (12, 600)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "line 1: not JSON: "),
        ("[" * 100_000, "line 1: not JSON: "),
        (json.dumps({**RUN, "stalls": 10**400}), "record 0: stalls: expected a number of 0 or more, found 1000"),
        ("[]", "expected one record or more, found 0"),
        ("[7]", "record 0: expected an object, found int"),
        (json.dumps({**RUN, "wait": -1, "stalls": 0}), "record 0: wait: expected a number of 0 or more, found -1"),
        (json.dumps({**RUN, "wait": float("nan"), "stalls": 0}), "record 0: wait: expected a number of 0 or more"),
        (json.dumps(RUN), "record 0: expected batches, records, seconds, wait, wait_p50, wait_p99, wait_max, stalls"),
    ],
)
def test_waits_that_are_not_those_of_a_loader_are_errors(path, tmp_path, text, message):
    (tmp_path / "waits.json").write_text(text)
    with pytest.raises(mmapds.FormatError) as raised:
        report(path, waits=[tmp_path / "waits.json"])
    assert str(raised.value).startswith(f"{tmp_path / 'waits.json'}: {message}")


def test_loaders_are_measured_where_that_is_asked_for(path, tmp_path, monkeypatch):
    asked = []

    def measured(source, **given):
        asked.append((source, given["max_tokens"], given["batch_size"]))
        return real(source, workers=[0, 1], processes=False, seconds=0.02, **given)

    real = report_room.bench
    monkeypatch.setattr(report_room, "bench", measured)
    facts = report(path, tmp_path / "report.html", batch_size=16, ranks=2, loader=True)
    assert asked == [(path, None, 16)]
    assert [(each["kind"], each["workers"]) for each in facts["loader"]["ways"]] == [("threads", 0), ("threads", 1)]
    found = Page((tmp_path / "report.html").read_text())
    assert facts["loader"]["recommendation"]["text"] in found.text
    for way in facts["loader"]["ways"]:
        assert f"{way['warm']['records_per_second']:,.0f}" in found.text
