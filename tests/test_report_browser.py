"""Reports in a browser: nothing is logged or loaded, nothing overflows, all text can be read, light and dark.

`make test-report` runs them; they need Chromium. Pictures of all pages are left in build/report.
"""

import numpy as np
import pytest

from mmapds.report import report
from tests.support.browser import Browser
from tests.support.files import ROOT
from tests.support.reports import words

pytestmark = pytest.mark.browser
PICTURES = ROOT / "build" / "report"
NAMES = ("plans", "odd", "stale")

CONTRASTS = """
(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = colour => [0.2126, 0.7152, 0.0722].reduce((sum, each, at) => sum + each * linear(colour[at] / 255), 0);
  const ground = element => {
    const colour = element ? parse(getComputedStyle(element).backgroundColor) : [255, 255, 255];
    return colour.length < 4 || colour[3] > 0.99 ? colour : ground(element.parentElement);
  };
  const hasText = each => [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll('body *')].filter(hasText).map(each => {
    const style = getComputedStyle(each), colour = parse(each.closest('svg') ? style.fill : style.color);
    const [less, more] = [light(colour), light(ground(each))].sort((a, b) => a - b);
    return [(more + 0.05) / (less + 0.05), each.outerHTML.slice(0, 80)];
  });
})()
"""
"""The contrast of each text, as WCAG defines it."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of three plans, of odd samples, and of a stale dataset."""
    place = tmp_path_factory.mktemp("pages")
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(5, 0.8, 20_000)), 1, 2048).astype(int)
    path, plans = words(place / "corpus.jsonl", lengths), ["max_tokens=4096", "batch_size=32,chunk_size=256"]
    report(path, place / "plans.html", pack=4096, compare=plans)
    odd = words(place / ("a-name-without-a-break-" * 6 + ".jsonl"), [1, 10**7] * 30, ["x" * 3000, "</script>\x00"] * 30)
    report(odd, place / "odd.html", batch_size=4, ranks=2)
    with open(odd, "a") as file:
        file.write("{}\n")
    report(odd, place / "stale.html", ranks=2)
    return {name: place / f"{name}.html" for name in NAMES}


@pytest.fixture(scope="module")
def browser():
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Browser() as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (420, "dark"), (1440, "dark")])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_and_can_be_read(browser, pages, name, width, scheme):
    browser.show(pages[name], width=width, scheme=scheme)
    assert browser.logged == []
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    assert browser.overflowing() == []
    contrasts = browser.evaluate(CONTRASTS)
    assert len(contrasts) > 10
    assert [text for ratio, text in contrasts if ratio < 4.5] == []
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert is_dark == (scheme == "dark")
    browser.picture(PICTURES / f"{name}-{width}-{scheme}.png")


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
    assert browser.overflowing()
    assert min(browser.evaluate(CONTRASTS))[0] < 2
