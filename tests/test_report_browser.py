"""Reports in a browser: nothing is logged or loaded, nothing overflows, all text can be read, light and dark.

`make test-report` runs them; they need Chromium. Pictures of all pages are left in build/report.
"""

import json
from functools import partial

import numpy as np
import pytest

import mmapds.report as report_room
from mmapds.bench import bench
from mmapds.report import report
from tests.support.browser import Browser
from tests.support.files import ROOT
from tests.support.reports import words

pytestmark = pytest.mark.browser
PICTURES = ROOT / "build" / "report"
NAMES = ("budget", "plans", "odd", "stale", "loader")

OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(each => {
  if (each.closest('.scroll, pre') && !each.matches('.scroll, pre')) return false;
  const box = each.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(each => each.tagName + '.' + (each.className.baseVal ?? each.className) + ' ' + each.textContent.slice(0, 40))
"""
"""What lies outside of the window, but for what can be scrolled."""

OUTSIDE_OF_CHARTS = """
[...document.querySelectorAll('svg text')].filter(each => {
  const box = each.getBoundingClientRect(), chart = each.closest('svg').getBoundingClientRect();
  return box.right > chart.right + 3 || box.left < chart.left - 3 || box.bottom > chart.bottom + 3;
}).map(each => each.textContent)
"""

COLLIDING = """
[...document.querySelectorAll('svg')].flatMap(chart => {
  const texts = [...chart.querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
  return texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2).map(([other]) => one + ' / ' + other));
})
"""
"""Labels of a chart that lie on one another."""

BROKEN = """
[...document.querySelectorAll('tbody th')].filter(each => {
  const text = document.createRange();
  text.selectNodeContents(each);
  return !/\\s/.test(each.textContent) && each.textContent.length <= 13 && text.getClientRects().length > 1;
}).map(each => each.textContent)
"""
"""Names of rows that are one short word, and stand on two lines."""

CONTRASTS = """
(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const parts = colour.slice(0, 3).map(each => each / 255).map(
      each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const each of document.querySelectorAll('body *')) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own) continue;
    const style = getComputedStyle(each);
    const colour = parse(each.closest('svg') ? style.fill : style.color);
    const [one, two] = [light(colour), light(ground(each))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    const name = (each.closest('svg') ? 'svg ' : '') + each.tagName + '.' + (each.className.baseVal ?? each.className);
    found[name] = Math.min(found[name] ?? 99, ratio);
  }
  return JSON.stringify(found);
})()
"""
"""The least contrast of the text of each kind of element, as WCAG defines it."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports with a budget, of three plans, of odd samples, also in a stale dataset, and of loaders and a run."""
    place = tmp_path_factory.mktemp("pages")
    generator = np.random.default_rng(0)
    lengths = np.clip(np.exp(generator.normal(5, 0.8, 20_000)), 1, 2048).astype(int)
    path = words(place / "corpus.jsonl", lengths)
    report(path, place / "budget.html", max_tokens=16384)
    report(path, place / "plans.html", pack=4096, compare=["max_tokens=4096", "batch_size=32,chunk_size=256"])
    odd = words(place / ("a-name-without-a-break-" * 6 + ".jsonl"), [1, 10**7] * 30, ["x" * 3000, "</script>\x00"] * 30)
    report(odd, place / "odd.html", batch_size=4, ranks=2)
    with open(odd, "a") as file:
        file.write("{}\n")
    report(odd, place / "stale.html", ranks=2)
    waits = [{"rank": rank, "batches": 10, "records": 80, "seconds": 4, "wait": rank / 9} for rank in range(8)]
    rest = {"wait_p50": 0.01, "wait_p99": 0.1, "wait_max": 0.4, "stalls": 0}
    (place / "waits.jsonl").write_text("".join(json.dumps(each | rest) + "\n" for each in waits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_room, "bench", partial(bench, workers=[0, 1, 2, 4], seconds=0.05))
        report(path, place / "loader.html", max_tokens=16384, loader=True, waits=place / "waits.jsonl")
    return {name: place / f"{name}.html" for name in NAMES}


@pytest.fixture(scope="module")
def browser():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Browser() as started:
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_and_can_be_read(browser, pages, name, width, scheme):
    path = pages[name]
    browser.show(path, width=width, scheme=scheme)
    assert browser.logged == []
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    assert browser.evaluate(OVERFLOWING) == []
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
    assert browser.evaluate(COLLIDING) == []
    assert browser.evaluate(BROKEN) == []
    assert (
        browser.evaluate(
            "Math.min(...[...document.querySelectorAll('svg text')].map(each =>"
            " parseFloat(getComputedStyle(each).fontSize) * each.closest('svg').clientWidth /"
            " each.closest('svg').viewBox.baseVal.width))"
        )
        >= 11
    )
    contrasts = json.loads(browser.evaluate(CONTRASTS))
    assert len(contrasts) > 10
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
    assert browser.evaluate("document.scripts.length") == 0
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert is_dark == (scheme == "dark")
    browser.picture(PICTURES / f"{path.stem}-{width}-{scheme}.png")


def test_the_browser_notices_what_a_page_should_not_do(browser, tmp_path):
    """So that the test above can fail."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<body style='background:#fff'><p style='color:#ccc'>faint</p><div style='width:3000px'>wide</div>"
        "<script>console.error('no')</script><img src='http://127.0.0.1:9/x.png'>"
    )
    browser.show(page, width=360, scheme="light")
    assert len(browser.logged) >= 2
    assert browser.evaluate("document.scrollingElement.scrollWidth") > 360
    assert browser.evaluate(OVERFLOWING)
    assert min(json.loads(browser.evaluate(CONTRASTS)).values()) < 2
