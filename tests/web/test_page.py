"""The page itself: structure, sizes, keyboard, colours, and requests."""

import re
import subprocess
import urllib.request

import pytest
from playwright.sync_api import expect
from web_steps import (
    LOOKS,
    ask, ask_more, expect_one_line, limit_answers, meter, nothing_below, overflow, send, settings, stop, tab_to, violations, wait_ended, wait_shown,
    wait_words, without_end,
)  # fmt: skip

VIEWS = ("chat", "memory", "evaluation", "inspector")

pytestmark = pytest.mark.slow  # a browser


def test_types(dist):
    done = subprocess.run(["npm", "run", "-s", "check"], cwd=dist.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_page_is_three_files_without_scripts_or_styles_in_the_text(dist, server):
    assert sorted(it.name for it in dist.iterdir()) == ["app.css", "app.js", "index.html"]
    html = (dist / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", html)
    assert not re.search(r"(src|href)=\"https?:", html)
    with urllib.request.urlopen(server.address + "/") as reply:
        policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_accessible_and_as_wide_as_the_window(open_page, root, view, width, scheme):
    page = open_page(view, width=width, color_scheme=scheme)
    if view == "chat":
        limit_answers(page, 30)
        ask(page, "Write a table of two cities and their rivers.")
    if view == "memory":
        page.locator(".quiz input").first.check()
        expect(page.locator(".quiz .reply")).to_have_count(1)
    if view == "evaluation":
        page.set_input_files("input[type=file]", root / "experiments/results/cortado-macchiato-gap/results.jsonl")
        page.wait_for_selector(".u-over")
        page.locator("details summary").first.click()
        expect(page.locator("details").first).to_have_attribute("open", "")
    if view == "inspector":
        page.get_by_role("button", name="Inspect").click()
        wait_shown(page)
    assert violations(page) == []
    assert overflow(page) <= 0


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone(open_page, width):
    page = open_page(width=width, height=640)
    ask_more(page, max_tokens=4)
    page.get_by_role("list", name="Examples").get_by_role("button").first.click()
    wait_ended(page)
    for view in ("Memory", "Evaluation", "Inspector", "Playground"):
        page.get_by_role("link", name=view).click()
        page.wait_for_selector(f"h1:has-text('{view}')")
        expect_one_line(page, page.locator("header"))
        assert page.locator("header").bounding_box()["height"] < 56
        assert nothing_below(page), view
    expect(page.get_by_role("status").filter(has_text="Server ready")).to_have_count(1)


def test_a_busy_playground_is_accessible(open_page):
    page = open_page(width=320)
    without_end(page)
    page.get_by_label("Compare with").select_option("window")
    settings(page, True)
    assert violations(page) == []
    settings(page, False)
    send(page, "Tell me a long story.")
    expect(page.locator(".answer")).to_have_count(2)
    wait_words(page)
    assert violations(page) == []
    assert overflow(page) <= 0
    stop(page)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edit your turn")).to_be_focused()
    assert violations(page) == []


def test_nothing_moves_while_an_answer_is_written(open_page):
    page = open_page()
    limit_answers(page, 8)
    ask(page, "Say hello.")
    without_end(page)
    page.evaluate("""() => { window.shift = 0; const add = (list) => list.forEach((it) => window.shift += it.value);
      const observer = new PerformanceObserver((list) => add(list.getEntries())); observer.observe({type: 'layout-shift'});
      window.shifted = () => { add(observer.takeRecords()); return window.shift; }; }""")
    send(page, "Write a long text about trees, with a list and a table.")
    wait_words(page, 10)
    places = "() => ['.composer', 'header', '.toolbar', '.composer .main'].map((it) => JSON.stringify(" \
        "document.querySelector(it).getBoundingClientRect()))"
    before = page.evaluate(places)
    shift = page.evaluate("window.shifted()")
    wait_words(page, 200)
    assert page.evaluate(places) == before
    stop(page)
    assert page.evaluate("window.shifted()") - shift < 0.01


def test_the_whole_of_a_conversation_by_keyboard(open_page):
    page = open_page()
    without_end(page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    prompt = page.locator("#prompt")
    tab_to(page, prompt)
    page.keyboard.type("Tell me a long story about the sea.")
    expect(prompt).to_have_value("Tell me a long story about the sea.")
    page.keyboard.press("Enter")
    wait_words(page, 20)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    page.wait_for_selector(".answer.stopped")
    tab_to(page, page.get_by_role("button", name="Edit"), "Shift+Tab")
    page.keyboard.press("Enter")
    editor = page.get_by_label("Edit your turn")
    expect(editor).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.type(" Briefly.")
    expect(editor).to_have_value("Tell me a long story about the sea. Briefly.")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".branches")).to_contain_text("2 of 2")
    page.wait_for_selector(".answer.writing")
    expect(page.locator(".words")).to_have_text(re.compile(r"Briefly\.$"))


def test_the_switch_of_colours_outlasts_a_reload(open_page):
    page = open_page(color_scheme="light")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(shade)
    page.get_by_label("Colours").select_option("dark")
    page.wait_for_function(f"(light) => {shade} !== light", arg=light)
    dark = page.evaluate(shade)
    page.reload()
    page.wait_for_selector("header")
    page.wait_for_function(f"(dark) => {shade} === dark", arg=dark)


def test_numbers_that_a_server_leaves_out_are_a_dash(open_page):
    page = open_page()
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "exact"}]}))
    page.reload()
    page.wait_for_selector(".status.ready")
    without_end(page)  # an answer's end would bring its own numbers
    send(page, "Tell me a story.")
    wait_words(page, 5)
    for name in ("Memory in use", "With full attention"):
        expect(meter(page, name)).to_have_text("–")
    expect(page.locator(".answer.writing")).to_have_count(1)
