"""Pages of the site in a browser, narrow and wide, light and dark: nothing overflows, and axe-core finds no barrier.

`make test-site` builds the site and runs them; they need Chromium, and use axe-core where npm could fetch it.
"""

import json

import pytest

from tests.support.browser import Browser
from tests.support.files import ROOT

pytestmark = pytest.mark.browser
SITE = ROOT / "build" / "docs" / "html"
PAGES = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html")) if "_downloads" not in path.parts]
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
WINDOWS = [(width, scheme) for width in (360, 1440) for scheme in ("light", "dark")]

BARRIERS = """
axe.run(document, {resultTypes: ['violations'], preload: false}).then(found => found.violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .flatMap(each => each.nodes.map(node => `${each.id}: ${node.target.join(' ')}: ${node.html.slice(0, 100)}`)))
"""
UNSEEN = """
[...document.querySelectorAll('article img')].filter(each => !each.complete || each.naturalWidth === 0)
  .map(each => each.src)
"""
SIZES_OF_CODE = (
    "[...document.querySelectorAll('article code')].map(each => parseFloat(getComputedStyle(each).fontSize))"
)
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_fits_and_has_no_barrier(browser, page, width, scheme):
    browser.show(SITE / page, width=width, scheme=scheme)
    assert browser.logged == []
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
    assert browser.overflowing("article *", ".table-wrapper, .picture, pre") == []
    assert browser.evaluate(UNSEEN) == []
    assert min(browser.evaluate(SIZES_OF_CODE), default=12) >= 11.5
    if AXE.exists():
        browser.evaluate(AXE.read_text() + "; 0")
        assert browser.evaluate(BARRIERS) == []


def test_the_switch_of_the_site_chooses_a_scheme(browser):
    """Beside what the system prefers."""
    grounds = {}
    for theme in ("light", "dark"):
        browser.show(SITE / "index.html", width=1440, scheme="light")
        browser.evaluate(f"document.body.dataset.theme = {json.dumps(theme)}")
        grounds[theme] = browser.evaluate(GROUND)
    browser.show(SITE / "index.html", width=1440, scheme="dark")
    assert grounds["light"] != grounds["dark"] == browser.evaluate(GROUND)
