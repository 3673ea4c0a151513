"""A user's steps on the page. Each step waits for its effect, because nothing changes at once."""

import json
import os
import pathlib
import re

from playwright.sync_api import expect

AXE = pathlib.Path(__file__).resolve().parent.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
KEYS = "Object.keys(localStorage).filter((key) => key.startsWith('cortado.conversation.'))"
# CORTADO_SLOW_BROWSER=8 makes the page's scripts eight times as slow: no test may fail then.
SLOWNESS = float(os.environ.get("CORTADO_SLOW_BROWSER", "1"))
WAIT_MS = 30_000 * max(1, round(SLOWNESS / 4))
# (width, scheme) in which every view is tested: each once; with CORTADO_EVERY_LOOK=1, as in `make check-all`, all of
# them.
EVERY_LOOK = os.environ.get("CORTADO_EVERY_LOOK") == "1"
LOOKS = [(320, "light"), (1600, "dark"), *([(320, "dark"), (1600, "light")] if EVERY_LOOK else [])]


def slow_down(page):
    if SLOWNESS > 1:
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWNESS})


def send(page, text):
    """Sends a text and waits for the new turn."""
    turns = page.locator(".turn")
    count = turns.count()
    page.get_by_label("Your turn", exact=True).fill(text)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.keyboard.press("Enter")
    expect(turns).to_have_count(count + 1)


def wait_ended(page, answer="exact", turn=-1):
    """Waits for a column's answer to end; returns its text."""
    expect(answer_of(page, answer, turn)).to_have_attribute("aria-busy", "false", timeout=4 * WAIT_MS)
    return text_of(page, answer, turn)


def ask_more(page, **fields):
    """Adds these fields to all chat requests of the page."""

    def more(route):
        route.continue_(post_data=json.loads(route.request.post_data) | fields)

    page.route("**/v1/chat/completions", more)


def without_end(page):
    """Makes answers continue until they are stopped, however slow the test is."""
    ask_more(page, ignore_eos=True, max_tokens=4000)


def stop(page):
    page.get_by_role("button", name="Stop").click()
    return wait_ended(page)


def answer_of(page, answer="exact", turn=-1):
    return page.locator(".turn").nth(turn).locator("article", has=page.get_by_role("heading", name=answer, exact=True))


def text_of(page, answer="exact", turn=-1):
    return answer_of(page, answer, turn).locator(".text").inner_text()


def ask(page, text, answer="exact"):
    send(page, text)
    return wait_ended(page, answer)


def settings(page, opened):
    """Opens or closes the panel."""
    page.get_by_text("Settings", exact=True).click()
    expect(page.locator("details.settings[open]")).to_have_count(1 if opened else 0)


def limit_answers(page, tokens, temperature=0.7):
    """Makes answers exactly this long, so that none is too short by chance."""
    ask_more(page, ignore_eos=True)
    settings(page, True)
    page.get_by_label("Max tokens").fill(str(tokens))
    page.get_by_label("Temperature").fill(str(temperature))
    settings(page, False)


def tab_to(page, place, key="Tab"):
    """Presses the key until `place` has the focus."""
    for _ in range(40):
        page.evaluate("window.focusBefore = document.activeElement")
        page.keyboard.press(key)
        page.wait_for_function("document.activeElement !== window.focusBefore")
        if place.evaluate("(it) => it === document.activeElement"):
            return
    raise AssertionError(f"the focus never came to {place}")


def wait_shown(page):
    """Waits until the inspector shows the result."""
    page.wait_for_selector(".tokens")
    expect(page.locator(".ask .state")).to_have_text("")


def wait_words(page, count=20):
    """Waits for `count` characters of the last answer."""
    script = "(count) => [...document.querySelectorAll('.answer .text')].pop()?.innerText.length > count"
    page.wait_for_function(script, arg=count)


def meter(page, name, answer="exact", turn=-1):
    """Returns the element of one of the meter's numbers."""
    row = answer_of(page, answer, turn).locator(".meter div", has=page.get_by_text(name, exact=True))
    return row.locator("dd")


def expect_one_line(page, place):
    """Checks that all children share a line."""
    tops = place.evaluate("(it) => [...it.children].map((part) => part.getBoundingClientRect()).filter((it) => it.width > 1)"
                          ".map(({top, bottom}) => (top + bottom) / 2)")
    assert max(tops) - min(tops) < 10, tops


def nothing_below(page):
    """Returns whether the page fits the window: long parts scroll on their own."""
    return page.evaluate("document.scrollingElement.scrollHeight - innerHeight") <= 0


def read_again(page):
    """Returns (tokens of the last prompt that were not cached, all its tokens)."""
    place = meter(page, "Prompt")
    expect(place).to_have_text(re.compile("remembered"))
    wait_ended(page)
    remembered, total = [int(it.replace(",", "")) for it in re.findall(r"[\d,]*\d", place.inner_text())]
    return total - remembered, total


def kept(page):
    """Returns the conversations in the browser's store."""
    return [json.loads(it) for it in page.evaluate(f"{KEYS}.map((key) => localStorage.getItem(key))")]


def violations(page):
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [(it["id"], [node["html"][:200] for node in it["nodes"]]) for it in found]


def overflow(page):
    """Returns by how many pixels the page, its content or the messages overflow."""
    return page.evaluate("""() => Math.max(...[...document.querySelectorAll('html, main, .messages')].map(
      (it) => it.scrollWidth - it.clientWidth))""")
