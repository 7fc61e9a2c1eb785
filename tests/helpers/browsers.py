"""The panel in headless Chromium, for slow tests and for the pictures in the docs."""

import os
import re
import shutil
from contextlib import contextmanager

WAIT = 120_000
"""Milliseconds that anything but training may take."""


def chromium():
    """Return the path of Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def reason_to_skip():
    """Return why there is no browser here, or ""."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if chromium() else "Chromium not found; set CHROMIUM to its path"


@contextmanager
def opened(url, dark=False, width=1280, height=900):
    """Open a URL as a PanelPage."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        scheme = "dark" if dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(WAIT)
        try:
            yield PanelPage(page, url)
        finally:
            browser.close()


class PanelPage:
    """What a person does with the panel."""

    def __init__(self, page, url):
        self.page, self.faults = page, []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.goto(url)
        self.settle()

    def settle(self):
        """Wait until the page is there and refreshes itself."""
        self.page.wait_for_selector("#s4s-train")
        self.page.wait_for_function("() => window.s4sTick !== undefined")

    def reload(self):
        self.page.reload()
        self.settle()

    def tab(self, name):
        tabs = self.page.locator("button[role=tab]:visible, .tab-nav button:visible")
        tabs.filter(has_text=re.compile(rf"^\s*{name}\s*$")).first.click()

    def accordion(self, name):
        self.page.locator(".label-wrap:visible", has_text=name).first.click()

    def fill(self, label, value):
        field = self.page.get_by_label(label, exact=False).locator("visible=true").first
        field.fill(str(value))
        field.press("Tab")

    def train(self, **fields):
        """Train a solver for the demo with the quick preset; `fields` are those of Advanced."""
        self.page.get_by_label("quick", exact=True).first.check()
        if fields:
            self.accordion("Advanced")
            for label, value in fields.items():
                self.fill(label, value)
        self.page.locator("#s4s-train").click()
        self.page.wait_for_selector("#s4s-job [data-status]:visible")

    def status(self):
        """Return (status, percent) of the shown job."""
        card = self.page.locator("#s4s-job [data-status]").first
        percent = re.search(r"(\d+)%", card.inner_text())
        return card.get_attribute("data-status"), int(percent[1]) if percent else 0

    def wait_for(self, script, seconds):
        """Wait until a script is true on the page; fail if the job does."""
        failed = "document.querySelector('#s4s-job [data-status=failed]')"
        self.page.wait_for_function(f"() => ({script}) || {failed}", timeout=1000 * seconds)
        assert self.status()[0] != "failed", self.page.locator("#s4s-job").inner_text()

    def wait_until_done(self, seconds):
        self.wait_for("document.querySelector('#s4s-job [data-status=done]')", seconds)

    def sources(self, selector):
        """Return the bytes of the pictures in an element."""
        import base64

        images = self.page.locator(f"{selector} img").all()
        texts = [image.get_attribute("src") for image in images]
        return [base64.b64decode(text.partition("base64,")[2]) for text in texts]
