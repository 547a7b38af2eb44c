"""The page of `eagle-serve`, in a real browser.

    PAGE_IMAGES=docs/images pytest tests/end_to_end/test_page.py

takes the images that docs/ shows.
"""

import base64
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eagle_aot.runtime_runner import Runner
from support.images import drawn, stored
from support.server import Server, served

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
ANSWERED = "article.assistant footer"
SCREENS = {"phone": (390, 800), "desktop": (1000, 540)}
"""Widths and heights."""
IMAGES = "PAGE_IMAGES"


@pytest.fixture
def page(server: Server) -> "Iterator[Page]":
    """On a phone, with two pixels for each of CSS's."""
    with opened(server) as page:
        yield page


@contextmanager
def opened(server: Server) -> "Iterator[Page]":
    """The page of a server whose model is called tiny; it sends no request to another one."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(device_scale_factor=2)
        set_screen(page, "phone")
        page.set_default_timeout(20_000)
        requested: list[str] = []
        problems: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        page.get_by_role("heading", name="tiny").wait_for()
        yield page
        browser.close()
    assert all(url.startswith((server.url, "data:")) for url in requested)
    assert [problem for problem in problems if "status of 400" not in problem] == []


def set_screen(page: "Page", device: str) -> None:
    width, height = SCREENS[device]
    page.set_viewport_size({"width": width, "height": height})


@pytest.mark.parametrize("device", SCREENS)
def test_the_page_fits_a_screen(page: "Page", device: str) -> None:
    """All of the form without scrolling, and nothing out of sight at the side."""
    set_screen(page, device)
    page.fill("#text", QUESTION)
    page.click("#send")
    page.locator(ANSWERED).wait_for()
    page.locator(".round").nth(3).focus()
    if IMAGES in os.environ:
        page.screenshot(path=Path(os.environ[IMAGES]) / f"page-{device}.png")
    width, height = SCREENS[device]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelector('form').getBoundingClientRect().bottom") <= height


def test_a_question_is_answered_without_a_mouse(page: "Page", server: Server) -> None:
    expected = server.client.chat.completions.create(
        model="tiny", temperature=0, messages=[{"role": "user", "content": QUESTION}]
    )
    page.focus("#text")
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.locator(ANSWERED).wait_for()
    rounds = page.locator(".round")
    assert "".join(rounds.all_inner_texts()) == expected.choices[0].message.content
    assert float(page.inner_text("#tau")) > 3 and int(page.inner_text("#count")) > 30
    assert page.locator(".draft").count() > page.locator(".target").count()
    rounds.nth(1).focus()
    assert page.inner_text("#round").startswith("round 1: 4 drafted, ")


def test_an_answer_without_drafts_is_the_same_text(page: "Page") -> None:
    page.fill("#text", QUESTION)
    page.fill("#temperature", "0.8")
    page.click("#send")
    page.locator(ANSWERED).wait_for()
    page.click("#again")
    second = page.locator(ANSWERED).nth(1)
    second.wait_for()
    assert "plainly" in second.inner_text() and second.inner_text().endswith("the same text")


def test_a_new_chat_clears_the_turns(page: "Page") -> None:
    for count in (1, 2):
        page.fill("#text", QUESTION)
        page.click("#send")
        page.locator(ANSWERED).nth(count - 1).wait_for()
    page.click("#reset")
    assert page.locator("article").count() == 0


def test_an_answer_can_be_stopped(page: "Page", server: Server) -> None:
    page.fill("#text", "")
    page.click("#send")
    assert page.locator("article").count() == 0  # nothing was said
    page.route("**/chat/completions", without_an_end)
    cancelled = 'eagle_requests_total{outcome="cancelled"}'
    before = server.metric(cancelled)
    page.fill("#longest", "900")
    page.fill("#text", QUESTION)
    page.click("#send")
    page.locator(".round").first.wait_for()
    page.click("#stop")
    page.locator("#send").wait_for()
    assert page.locator(ANSWERED).count() == 0
    ends = time.monotonic() + 10
    while server.metric(cancelled) == before and time.monotonic() < ends:
        time.sleep(0.05)
    assert server.metric(cancelled) == before + 1


def without_an_end(route: "Route") -> None:
    """Requests an answer so long that it can be stopped in time."""
    route.continue_(post_data=route.request.post_data_json | {"ignore_eos": True})


def test_page_shows_refusals_of_the_server(page: "Page") -> None:
    page.fill("#text", "word " * 5000)
    page.click("#send")
    page.locator("article.failed").wait_for()
    assert "context" in page.inner_text("article.failed")


def file(content: bytes, name: str = "a.png", kind: str = "image/png") -> Any:
    """Return a file as a browser gets it."""
    return {"name": name, "mimeType": kind, "buffer": content}


def test_images_are_shown_and_seen(image_artifact: Path, image_runner: Runner) -> None:
    """One that is chosen and one that is dropped; one is pasted and left out again. The answer
    to them can be requested again."""
    first, second = (stored(drawn(40, 60, seed)) for seed in (1, 2))
    expected = image_runner.generate("what", 12, images=[first, second]).text
    with served(image_artifact, "--served-model-name", "tiny") as server, opened(server) as page:
        page.fill("#longest", "12")
        with page.expect_file_chooser() as chooser:
            page.click("#attach")
        chooser.value.set_files([file(first)])
        for content, how in ((second, "drop"), (first, "paste")):
            page.evaluate(GIVE, [base64.b64encode(content).decode(), how])
        thumbnails = page.locator("#images img")
        thumbnails.nth(2).wait_for()
        thumbnails.nth(2).click()
        assert thumbnails.count() == 2
        page.fill("#text", "what")
        page.click("#send")
        page.locator(ANSWERED).wait_for()
        assert "".join(page.locator(".round").all_inner_texts()) == expected
        assert page.locator("article.user img").count() == 2 and thumbnails.count() == 0
        page.click("#again")
        again = page.locator(ANSWERED).nth(1)
        again.wait_for()
        assert again.inner_text().endswith("the same text")


GIVE = """([content, how]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], `${how}.png`, { type: "image/png" }));
  const options = { bubbles: true, cancelable: true, dataTransfer: given, clipboardData: given };
  const kind = how === "paste" ? ClipboardEvent : DragEvent;
  document.getElementById("text").dispatchEvent(new kind(how, options));
}"""


def test_files_that_are_no_images_are_refused_in_one_line(page: "Page") -> None:
    page.set_input_files("#files", [file(b"words", "a.txt", "text/plain")])
    failed = page.locator("article.failed")
    failed.wait_for()
    assert failed.inner_text() == "a.txt: not a PNG, JPEG or WebP file"
    page.set_input_files("#files", [file(stored(drawn(8, 8)))])
    page.locator("#images img").wait_for()
    page.fill("#text", QUESTION)
    page.click("#send")
    failed.nth(1).wait_for()
    line = "this artifact reads text alone: export with --inputs text,image"
    assert failed.nth(1).inner_text() == line
    page.fill("#text", QUESTION)  # without it
    page.click("#send")
    page.locator(ANSWERED).wait_for()
