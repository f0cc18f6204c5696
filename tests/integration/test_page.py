"""The page at `/` in a browser: a conversation, its tokens, tool calls, the fleet, keys, the keyboard alone.

With QUIRE_SCREENSHOTS=1, screenshots are saved to docs/images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.browser import CHROMIUM, Browser
from tests.support.stack import ROOT, Stack, start_stack, stop_stack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: Debian's package chromium"),
]

KEY = "sesame"
LAST = "document.querySelector('article.assistant:last-of-type')"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = start_stack(None, tmp_path_factory.mktemp("page") / "serve.log", "--api-key", KEY)
    try:
        stack.wait_healthy()
        yield stack
    finally:
        stop_stack(stack)


@pytest.fixture
def browser(demo: Stack, tmp_path: Path) -> Iterator[Browser]:
    """A browser on the page, with the key entered; afterwards it must have loaded nothing from elsewhere."""
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{demo.url}/")
        enter_key(browser)
        yield browser
        origins = {urlsplit(url).netloc for url in browser.requested if url.startswith("http")}
        assert origins == {urlsplit(demo.url).netloc}
        # The page first asks without a key, and is refused.
        assert not [text for text in browser.complaints if "Failed to load resource" not in text]


def enter_key(browser: Browser) -> None:
    browser.until("document.getElementById('key-dialog').open")
    browser.type(KEY)
    browser.press("Enter")
    browser.until("document.getElementById('model').options.length === 1")
    browser.value("document.getElementById('prompt').focus()")


def ask(browser: Browser, text: str) -> None:
    browser.value("document.getElementById('prompt').focus()")
    browser.type(text)
    browser.press("Enter")
    browser.until(f"{LAST}?.querySelector('.facts') && !document.getElementById('send').hidden")


def setting(browser: Browser, name: str, value: str | bool) -> None:
    control = f"document.querySelector('[data-setting={name}]')"
    field = "checked" if isinstance(value, bool) else "value"
    browser.value(f"{control}.{field} = {json.dumps(value)}; {control}.dispatchEvent(new Event('change'))")


def keep(browser: Browser, name: str) -> None:
    if os.environ.get("QUIRE_SCREENSHOTS"):
        folder = ROOT / "docs/images"
        folder.mkdir(exist_ok=True)
        browser.screenshot(folder / f"{name}.png")


def test_a_conversation_by_the_keyboard(browser: Browser) -> None:
    setting(browser, "temperature", "0")
    setting(browser, "logprobs", True)
    ask(browser, "My name is Clara.")
    ask(browser, "What is my name?")
    assert "Clara" in browser.value(f"{LAST}.innerText")
    facts = browser.value(f"{LAST}.querySelector('.facts').innerText")
    assert "first token" in facts
    assert " tokens" in facts
    browser.value(f"{LAST}.querySelector('.facts button').click()")
    tokens = browser.value(f"{LAST}.querySelector('.tokens').textContent")
    assert "Clara" in tokens
    browser.value(f"{LAST}.querySelector('.tokens button').focus()")
    assert browser.value(f"{LAST}.querySelector('.alternatives').textContent").count("%") == 5
    keep(browser, "page-chat")
    browser.value("document.getElementById('retry').click()")
    browser.until(f"{LAST}.querySelector('.facts') && !document.getElementById('send').hidden")
    assert browser.value("document.querySelectorAll('article').length") == 4
    browser.value("document.getElementById('clear').click()")
    assert browser.value("document.querySelectorAll('article').length") == 0


def test_what_is_said_is_text_and_nothing_else(browser: Browser) -> None:
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    setting(browser, "max_tokens", "4")
    ask(browser, evil)
    assert browser.value("document.querySelector('article.user').textContent") == evil
    assert browser.value("document.title") == "Quire"
    assert browser.value("document.querySelectorAll('article img, article script').length") == 0


def test_tools_are_called_and_answered(browser: Browser) -> None:
    setting(browser, "temperature", "0")
    weather = {
        "type": "function", "function": {
            "name": "get_weather", "description": "Tell the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }  # fmt: skip
    setting(browser, "tools", json.dumps([weather]))
    ask(browser, "What is the weather in Rome?")
    call = f"{LAST}.querySelector('.call')"
    assert "get_weather" in browser.value(f"{call}.innerText")
    assert "Rome" in browser.value(f"{call}.innerText")
    browser.value(f"{call}.querySelector('textarea').focus()")
    browser.type('{"temperature": 21, "sky": "sunny"}')
    browser.value(f"{call}.querySelector('button').click()")
    browser.until("document.querySelectorAll('article.assistant').length === 2")
    browser.until(f"{LAST}.querySelector('.facts') !== null")
    assert "sunny" in browser.value(f"{LAST}.innerText")
    keep(browser, "page-tools")


def test_an_answer_is_stopped_and_an_error_is_shown(browser: Browser) -> None:
    setting(browser, "max_tokens", "1500")
    setting(browser, "temperature", "2")
    browser.type("Hello!")
    browser.press("Enter")
    browser.until("!document.getElementById('stop').hidden")
    browser.press("Escape")
    browser.until("!document.getElementById('send').hidden")
    setting(browser, "temperature", "9")
    ask(browser, "Hello!")
    assert "temperature" in browser.value(f"{LAST}.querySelector('.error').textContent")


def test_the_fleet_by_the_keyboard_in_the_dark(demo: Stack, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile", dark=True) as browser:
        browser.open(f"{demo.url}/")
        enter_key(browser)
        ask(browser, "What is Quire?")
        browser.value("document.getElementById('tab-chat').focus()")
        browser.press("ArrowRight")
        browser.until("document.querySelectorAll('#workers tr').length === 1")
        browser.until("document.querySelector('polyline').getAttribute('points').split(' ').length >= 2")
        assert "ready" in browser.value("document.getElementById('workers').innerText")
        assert browser.value("document.querySelectorAll('#curves figure').length") == 4
        red, green, blue = browser.value(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        )
        assert max(red, green, blue) < 64
        keep(browser, "page-fleet")
