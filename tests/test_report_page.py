"""Pages of reports: whole, the same bytes each time, without a script, and all data are text."""

import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import mmapds
import mmapds.report as report_room
from mmapds.report import report
from mmapds.report.numbers import edges_of
from mmapds.report.page import CHOICE, FAIR, GOOD, NOTE, POOR, bars, page, percent, verdicts
from tests.support.commands import run
from tests.support.messages import check
from tests.support.reports import Page, measure_in_this_process, words

HOSTILE = [
    "</script><script>alert(1)</script>",
    "{{ 1234 * 4321 }}{% raw %}{# no #}",
    "</pre></details></style><img src=x onerror=alert(1)>",
    "\x00\x01\x08\x1b[31m\x7f\x9b\u202e\u2028\ufeff",
]
STEERING = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028\ufeff]"


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
    return Page(page(facts))


def test_a_page_is_one_html_file_without_a_script_or_an_address(made):
    assert not made.names & {"script", "iframe", "object", "embed", "link", "img", "base", "form"}
    assert not [name for _, each in made.tags for name in each if name.startswith("on")]
    outside = set(re.findall(r"(?:\w+:|[\"'(\s])//[\w.]+[\w/.]*", re.sub(r'base64,[^"]*', "", made.source)))
    assert outside == {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}  # names, which nobody loads
    assert "@import" not in made.source
    (policy,) = (each["content"] for name, each in made.tags if name == "meta" and "http-equiv" in each)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert len(made.ids) == len(set(made.ids))
    assert {each["href"][1:] for _, each in made.tags if each.get("href", "").startswith("#")} <= set(made.ids)
    assert len(made.source) < 400_000
    assert len(made.charts) == len(set(made.charts)) == 2 + 3 * 2 + 3 * 2
    assert "Cost of each rank: packs of 512" in made.charts
    assert not re.findall(r"#[0-9a-f]{6}|font-family", made.source.partition("</style>")[2])  # colours are the style's


def test_a_record_a_file_and_a_column_may_hold_html(tmp_path):
    name = "<script>alert('{{ 1234 * 4321 }}')\x1b.jsonl"
    path = words(tmp_path / name, range(1, 41), HOSTILE * 10)
    for column in ("<script>alert(2)", "{{ 1234 * 8765 }}", "{% raw %}"):
        mmapds.add_column(path, column, np.arange(40))
    for decode in (None, "text"):
        found = Page(page(report(path, ranks=1, decode=decode)))
        assert "script" not in found.names
        shown = [name.replace("\x1b", "\\u001b"), "<script>alert(2)", "{{ 1234 * 8765 }}", *HOSTILE[:3]]
        assert not [text for text in shown if text not in found.text]
        assert not re.search(STEERING, found.source)
        assert not {"5332114", "10816010"} & set(re.findall(r"\d+", re.sub("<svg.*?</svg>", "", found.source)))
    facts = report(path, samples=False)
    assert "alert(1)" not in page(facts) + json.dumps(facts)


def test_the_page_has_the_numbers_of_the_json(made, facts):
    numbers = [f"{facts['coverage']['records']:,}", f"{facts['lengths']['total']:,}"]
    numbers += [f"{row['budget']:,}" for row in facts["lengths"]["budgets"]]
    for plan in facts["plans"]:
        batches, reads = plan["batches"], plan["reads"]
        assert f"{plan['title']}steps an epoch{batches['steps']:,}" in made.text  # in the tile of the plan
        numbers += [f"{batches['steps']:,}", f"{batches['batches']:,}", percent(batches["cost"]["waiting"])]
        numbers += [f"{gaps['distance']:.3f} ({gaps['bound']:.3f})" for gaps in plan["shuffle"]["gaps"].values()]
        numbers += [f"{reads['amplification']:.1f}", f"{reads['pages_of_a_record']:.2f}"]
    assert not [number for number in numbers if number not in made.text]
    shown = [percent(share) for share in (0, 1e-6, 0.0123, 0.09996, 0.9999)]
    assert shown == ["0.00 %", "under 0.01 %", "1.23 %", "10.0 %", "100 %"]


def test_verdicts_say_what_is_good_and_what_is_bad(facts, made, path):
    found = verdicts(facts, [plan["title"] for plan in facts["plans"]])
    grades = [(POOR, FAIR, CHOICE, NOTE, GOOD).index(each.level) for each in found]
    assert (order := [(each.plan, grade) for each, grade in zip(found, grades, strict=True)]) == sorted(order)
    assert ["Do: " in each.text for each in found] == [grade < 3 for grade in grades]
    assert f"good\n{grades.count(4)} checks passed" in made.text
    assert "good to" in made.source[made.source.index('<details class="passed">') :].partition("</details>")[0]

    def grade(found, part):
        (level,) = (each.level for each in found if part in each.text)
        return level

    assert grade(found, "Every source is the same as when it was indexed.") == GOOD
    assert grade(found, "Packs of 512: Packs are 98.0 % full.") == FAIR
    # What the user chose has a cost, but is not poor.
    chosen = "Batches of 8, chunks of 4: You chose chunks of 4 records: "
    chosen += "150 chunks, 16 mixed at a time. The cost: an epoch mixes records "
    assert grade(found, chosen) == CHOICE
    assert not [each for each in found if each.plan == 2 and each.section == "reads"], "the choice has both directions"
    mixed = report(path, batch_size=8, chunk_size=4, compare="batch_size=8,chunk_size=4,mix_chunks=40")
    few, many = (each["shuffle"]["density"]["dispersion"] for each in mixed["plans"])
    assert few > many, "mixing more chunks is what the finding says"
    dropped = verdicts(report(path, max_tokens=200, samples=False), ["a"])
    assert grade(dropped, "of the records are left out: 200 over the budget.") == POOR
    facts = report(path, max_tokens=8192, ranks=1, samples=False)
    large = verdicts(facts, ["a"])
    said = "smaller budget, 1,024; an epoch of"
    assert (grade(large, said), grade(large, "The data fit into memory")) == (POOR, NOTE)
    assert "Ranks wait" not in str(large), "one rank has nobody to wait for"
    facts["plans"][0]["reads"]["fits"] = False
    assert grade(verdicts(facts, ["a"]), "Do: shuffle in chunks.") in (POOR, FAIR)


@pytest.mark.parametrize("lengths", [[5] * 30, [1], [1, 10**6], [2**64 - 1] + [5] * 30])
def test_odd_lengths_make_a_page(lengths, tmp_path):
    path = words(tmp_path / "odd.jsonl", lengths)
    for plan in ({"batch_size": 3, "chunk_size": 2}, {"max_tokens": 2**63 - 1}, {"pack": 10**6}):
        found = Page(page(report(path, ranks=1, **plan)))
        assert f"{max(lengths):,}" in found.text
        assert "nan" not in found.source


def test_sources_are_listed_where_they_are_few_or_have_changed(tmp_path):
    """What the index holds is shown. What lies in the sources that changed is not."""
    paths = [words(tmp_path / f"{part}.jsonl", range(1, 40)) for part in "abcd"]
    facts = report(paths, ranks=1, samples=False)
    found = Page(page(facts))
    assert ("All sources are current." in found.text, paths[0] in found.text) == (True, False)
    assert paths[0] in Page(page(report(paths[:2], ranks=1, samples=False))).text
    with open(paths[1], "a") as file:
        file.write("{}\n")
    changed = report(paths, ranks=1)
    coverage = changed["coverage"]
    assert (coverage["records"], coverage["sources"], coverage["is_current"]) == (156, 4, False)
    assert (coverage["states"], coverage["listed"][0]["path"]) == ({"stale": 1, "unchanged": 3}, paths[1])
    assert "run: python -m mmapds.index" in coverage["listed"][0]["message"]
    assert changed["plans"][0]["reads"] is changed["samples"] is None
    assert changed["lengths"] == facts["lengths"]
    found = Page(page(changed))
    assert "1 of 4 sources changed or cannot be read; index them again." in found.text
    assert (paths[0] in found.text, paths[1] in found.text, "reads" in found.ids) == (False, True, False)


def test_the_command_writes_a_page_and_says_so(path, tmp_path, ran, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    said = "report.html: train.jsonl, 600 records; token budget 1,024\n"
    assert ran("report", path, "--max-tokens", "1024", "--ranks", "4") == (0, said, "")
    options = ["--pack", "512", "--compare", "max_tokens=1024,ranks=2", "--no-samples", "--quiet", "-o", "packs.html"]
    assert ran("report", path, *options) == (0, "", "")
    found = Page((tmp_path / "packs.html").read_text()).text
    assert "packs of 512, ranks 8 · token budget 1,024, ranks 2" in found
    assert f"1970-01-02 · mmapds report {path} --pack 512 --compare max_tokens=1024,ranks=2 --no-samples\n" in found
    message = "no/r.html: cannot write the report here (no such file or directory); give another place\n"
    assert ran("report", path, "-o", "no/r.html") == (1, "", message)
    assert sorted(os.listdir(tmp_path)) == ["packs.html", "report.html"]


def test_the_page_names_the_command_that_makes_it(path, tmp_path, monkeypatch):
    """With a date that can be given; not the options that choose where the page goes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    other = words(tmp_path / "a b.jsonl", range(1, 99))
    options = {"mix": [0.25, 0.75], "ranks": 2, "samples": False, "roots": tmp_path, "decode": bytes}
    report([path, other], tmp_path / "r.html", **options, force=True)
    command = f"mmapds report {path} '{other}' --mix 0.25,0.75 --ranks 2 --no-samples --root {tmp_path}"
    assert f"1970-01-02 · {command}\n" in Page((tmp_path / "r.html").read_text()).text


def test_bars_show_shares_on_the_axis_that_they_need():
    """Also where lengths are cut to a limit, in a bar that is narrow, and where some lie far away."""
    axes = Figure().add_subplot()
    bars(axes, [1, 0, 60, 39], [0, 9000, 9500, 10000, 10500], "length", "all")
    assert (axes.get_xlim(), axes.get_ylabel()) == ((9500, 10500), "% of all")
    assert 60 < axes.get_ylim()[1] < 65
    for values, counts in (([*range(10, 4000), 4096], [1] * 3990 + [4000]), ([1, 2, 3, 900], [9, 9, 9, 1])):
        edges = edges_of(np.array(values), np.array(counts))
        axes = Figure().add_subplot()
        bars(axes, np.histogram(values, edges, weights=counts)[0], edges, "length", "all")
        assert axes.get_ylim()[1] <= 105
        assert axes.get_ylabel() == "% of all, by area"


def test_a_page_replaces_no_source_no_index_and_nothing_unasked(path, tmp_path):
    view, place = tmp_path / "view.mmx", tmp_path / "report.html"
    mmapds.open(path)[:9].save(view)
    place.write_text("mine")
    before = [Path(each).read_bytes() for each in (path, f"{path}.mmx", view, place)]
    read, free = "expected another file, found a source or an index", "expected a name that is free, found a file"
    for given, out, force, message in (
        (path, path, True, read),
        (path, f"{path}.mmx", True, read),
        (os.path.dirname(path), path, True, read),
        (view, view, True, read),
        (path, place, False, f"{free}; give another place, or replace it with force=True"),
    ):
        with pytest.raises(mmapds.Error) as error:
            report(given, out, force=force, roots=os.path.dirname(path))
        assert str(error.value) == f"{out}: {message}"
        check(str(error.value))
    assert [Path(each).read_bytes() for each in (path, f"{path}.mmx", view, place)] == before
    report(path, place, force=True)
    assert place.read_text().startswith("<!DOCTYPE html>\n")


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_json_has_the_facts_and_needs_no_extra(path, tmp_path, missing):
    code = f"""
import sys
sys.modules |= dict.fromkeys(["torch", {missing!r}])
from mmapds.cli.commands import main
main(["report", {path!r}, "--max-tokens", "1024", "--json"])
sys.exit(main(["report", {path!r}]))
"""
    ran = run("-c", code, cwd=tmp_path)
    assert json.loads(ran.stdout) == report(path, max_tokens=1024)
    expected = f"mmapds.report needs {missing}; run: pip install matplotlib jinja2\n"
    assert (ran.returncode, ran.stderr, os.listdir(tmp_path)) == (1, expected, [])


RUN = {"batches": 10, "records": 80, "seconds": 4.0, "wait": 1.0, "wait_p50": 0.1, "wait_p99": 0.3, "wait_max": 0.4}


def test_a_training_run_adds_what_its_ranks_waited_for(path, tmp_path):
    passes = [{"rank": 0, **RUN, "stalls": 0}, {"rank": 0, **RUN, "wait": 0.2, "wait_max": 0.9, "stalls": 1}]
    files = [tmp_path / "rank0.jsonl", tmp_path / "rank1.json"]
    files[0].write_text("".join(json.dumps(each) + "\n" for each in passes))
    loader = mmapds.DataLoader(mmapds.open(path), batch_size=50, collate_fn=list)
    assert len(list(loader)) == 12
    files[1].write_text(json.dumps({"rank": 1, "epoch": 3, **loader.stats()}))
    facts = report(path, ranks=2, waits=files, samples=False)
    first, second = facts["training"]["ranks"]
    assert (first["passes"], first["seconds"], first["wait"], first["wait_max"]) == (2, 8.0, 1.2, 0.9)
    assert (first["stalls"], first["waiting"]) == (1, pytest.approx(0.15))
    assert (second["rank"], second["batches"], second["records"]) == (1, 12, 600)
    total = (1.2 + second["wait"]) / (8 + second["seconds"])
    assert facts["training"]["waiting"] == pytest.approx(total)
    found = Page(page(facts))
    assert f"The training run waited {percent(total)} of its time for data." in found.text
    assert "training" in found.ids
    wrong = [json.dumps({**passes[0], "wait": wait}) for wait in (-1, float("nan"), "1")]
    for text in ("nothing", "[" * 100_000, "", json.dumps(RUN), *wrong):
        files[0].write_text(text)
        with pytest.raises(mmapds.FormatError) as raised:
            report(path, waits=files)
        expected = f"{files[0]}: line 1: expected numbers in JSON, as loader.stats() returns, found "
        assert str(raised.value).startswith(expected)


def test_loaders_are_measured_where_that_is_asked_for(path, monkeypatch):
    measure_in_this_process(monkeypatch)
    short = partial(report_room.bench, workers=[1], processes=False, cold=False, seconds=0.02)
    monkeypatch.setattr(report_room, "bench", short)
    facts = report(path, batch_size=16, ranks=2, loader=True)
    found, last = Page(page(facts)), facts["loader"]["trials"][-1]
    assert facts["loader"]["recommendation"]["text"] in found.text
    assert f"{round(last['warm']['records_per_second']):,}" in found.text
