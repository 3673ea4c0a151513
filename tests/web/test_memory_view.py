"""The memory view: its numbers are the formula's, and its link carries them."""

import json
import re
import urllib.request

from playwright.sync_api import expect

GB = 2**30


def row(page, name):
    """Its cells: how much at the length that is chosen, then when it runs out of each memory."""
    return page.locator("tr", has=page.get_by_role("rowheader", name=name)).first.locator("td")


def expect_bytes(page, name, words):
    expect(row(page, name).first).to_have_text(words)


def test_keys_and_values_grow_and_a_state_does_not(open_page, shot):
    page = open_page("memory?tokens=131072")
    per_token = 2 * 32 * 8 * 128 * 2  # Llama 3.1 8B
    ends = [f"after {limit * GB // per_token:,}" for limit in (8, 24, 80)]
    expect(row(page, "Full attention")).to_have_text([f"{131072 * per_token / GB:.1f} GB", *ends])
    state = 32 * 8 * 128 * 129 * 4
    expect(row(page, "Linear attention")).to_have_text([f"{state / 2**20:.1f} MB", *["never runs out"] * 3])
    expect(page.locator(".u-over")).to_have_count(1)
    shot(page, "memory")


def test_the_served_models_are_there_with_their_own_numbers(open_page, server):
    page = open_page("memory?tokens=4096")
    models = json.loads(urllib.request.urlopen(server.address + "/v1/models").read())["data"]
    exact, window = models
    expect_bytes(page, "exact and window, served here: keys", f"{exact['kv_cache_bytes'] / 2**20:.0f} MB")
    expect_bytes(page, "window, served here: its state", f"{window['state_bytes'] / 2**20:.2f} MB")


def test_the_length_is_a_slider_for_the_keyboard(open_page):
    page = open_page("memory?tokens=1")
    slider = page.get_by_role("slider", name="Length")
    slider.focus()
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "10,000,000 tokens")
    expect(page).to_have_url(re.compile("tokens=10000000"))
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "1 tokens")


def test_presets_heads_hybrid_batch_and_bytes(open_page):
    page = open_page("memory?tokens=10000")
    page.get_by_label("Preset").select_option("Llama 3.1 70B")
    page.get_by_label("Sequences at once").fill("3")
    page.get_by_label("A number of the cache").select_option("1")
    per_token = 3 * 2 * 80 * 8 * 128
    expect_bytes(page, "Full attention", f"{10000 * per_token / GB:.2f} GB")
    page.get_by_label("Heads share keys").uncheck()
    unshared = f"{10000 * 8 * per_token / GB:.1f} GB"
    expect_bytes(page, "Full attention", unshared)
    linear = row(page, "Linear attention").first.inner_text()
    hybrid = page.get_by_role("slider", name="Layers with full")
    hybrid.focus()
    expect(hybrid).to_be_focused()
    page.keyboard.press("End")
    expect_bytes(page, "Hybrid", unshared)
    page.keyboard.press("Home")
    expect_bytes(page, "Hybrid", linear)
    page.get_by_label("Count the weights").check()
    ends = ["never fits", "never fits", "never runs out"]
    expect(row(page, "Linear attention")).to_have_text([re.compile("GB$"), *(re.compile(f"^{it}$") for it in ends)])


def test_a_link_carries_the_settings(open_page):
    page = open_page("memory")
    page.get_by_label("Preset").select_option("SmolLM2 135M")
    page.get_by_label("Layers", exact=True).fill("12")
    page.get_by_label("Count the weights").check()
    expect(page).to_have_url(re.compile("layers=12.*weights=true"))
    expect(page.locator("main")).to_contain_text("Weights are counted")
    numbers = page.locator("tbody td").all_inner_texts()
    other = open_page(page.url.split("#/")[1])
    expect(other.locator("tbody td")).to_have_text(numbers)
    expect(other.get_by_label("Layers", exact=True)).to_have_value("12")
    expect(other.get_by_label("Preset")).to_have_value("")


def test_a_link_with_nonsense_is_no_harm(open_page):
    page = open_page("memory?tokens=-5&layers=1e99&batch=x&preset=%3Cscript%3E&gqa=maybe&constructor=3")
    expect(row(page, "Full attention")).to_have_count(4)
    expect(page.locator("main")).not_to_contain_text("NaN")


def test_the_questions_answer_back(open_page):
    page = open_page("memory")
    question = page.locator(".quiz fieldset").nth(2)
    question.get_by_label("Two kinds of layers").check()
    expect(question).to_contain_text("Not quite.")
    question.get_by_label("A few layers with full attention").check()
    expect(question).to_contain_text("Together each can be used")
    expect(page.locator(".quiz fieldset")).to_have_count(4)
