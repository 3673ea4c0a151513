"""The memory view: its numbers follow the formula, and its link has the settings."""

import json
import re
import subprocess
import urllib.request

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow  # a browser

GIB = 2**30


def row(page, name):
    """Returns a row's cells: the memory at the chosen length, then the longest length for each limit."""
    return page.locator("tr", has=page.get_by_role("rowheader", name=name)).first.locator("td")


def expect_bytes(page, name, words):
    expect(row(page, name).first).to_have_text(words)


def test_keys_and_values_grow_and_a_state_does_not(open_page, shot):
    page = open_page("memory?tokens=131072")
    per_token = 2 * 32 * 8 * 128 * 2  # Llama 3.1 8B
    ends = [f"{limit * GIB // per_token:,} tokens" for limit in (8, 24, 80)]
    expect(row(page, "Full attention")).to_have_text([f"{131072 * per_token / GIB:.1f} GiB", *ends])
    state = 32 * 8 * 128 * 129 * 4
    expect(row(page, "Linear attention")).to_have_text([f"{state / 2**20:.1f} MiB", *["any length"] * 3])
    expect(page.locator(".u-over")).to_have_count(2)
    shot(page, "memory")


def test_the_served_models_are_there_with_their_own_numbers(open_page, server):
    page = open_page("memory?tokens=4096")
    models = json.loads(urllib.request.urlopen(server.address + "/v1/models").read())["data"]
    exact, window = models
    expect_bytes(page, "exact and window, served here: keys", f"{exact['kv_cache_bytes'] / 2**20:.0f} MiB")
    expect_bytes(page, "window, served here: its state, O(1)", f"{window['state_bytes'] / 2**20:.2f} MiB")


HYBRID = {"id": "hybrid", "state_constant_bytes": 4 << 20, "state_bytes_per_token": 1024, "kv_cache_bytes_per_token": 8192}


def test_a_served_hybrid_grows(open_page):
    page = open_page("memory?tokens=131072")
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [HYBRID]}))
    # A hidden tab notices a replaced server when it is shown again.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect_bytes(page, "hybrid, served here: keys", "1.00 GiB")
    expect(page.get_by_role("rowheader", name="served here")).to_have_count(2)
    ends = [f"{((limit << 30) - (4 << 20)) // 1024:,} tokens" for limit in (8,)]
    expect(row(page, "hybrid, served here: its state, O(n)")).to_have_text(["132 MiB", *ends, *["more than 10 M tokens"] * 2])


KINDS = {
    "linear": "linear", "gla": "gla", "gated_delta_net": "gated_delta_net", "mamba2": "mamba2", "latte": "latte",
    "sliding_window": "sliding_window:window=128", "macchiato": "macchiato", "lola": "lola",
    "blurry_window": "blurry_window",
}  # fmt: skip


@pytest.mark.mechanism(*KINDS)
def test_states_are_what_analyze_memory_says(open_page, program):
    command = [program, "analyze", "memory", "--mixers", ",".join(KINDS.values()), "--lengths", "4096", "--json"]
    said = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True).stdout)
    told = {it["model"]: it["bytes"] for it in said["rows"]}  # of all layers, float32
    page = open_page("memory?layers=4&heads=4&kvHeads=4&headSize=32")  # configs/compare.json
    kinds = page.get_by_label("What they keep")
    assert sorted(kinds.locator("option").evaluate_all("(all) => all.map((it) => it.value)")) == sorted(KINDS)
    for kind, model in KINDS.items():
        kinds.select_option(kind)
        expect(page).to_have_url(re.compile(f"kind={kind}") if kind != "linear" else re.compile("memory"))
        shown = page.locator("tbody tr").nth(1).locator("td").first.inner_text()
        # The page leaves out the positions.
        assert abs(float(shown.split()[0]) * 1024 - told[model]) < 0.006 * told[model], (kind, shown, told[model])


def test_work_of_a_token_and_of_a_prompt(open_page):
    page = open_page("memory?tokens=1000&layers=2&heads=4&kvHeads=2&headSize=16&full=1")
    picture = page.get_by_role("img", name="Operations of")
    full, state = 4 * 4 * 16 * 1000, 2 * 16 * 17
    linear = 2 * (state + 2 * state)
    said = f"O(n), {2 * full / 1000:.3g} k; Linear attention, O(1), {2 * linear / 1000:.3g} k; Hybrid, O(n), {(full + linear) / 1000:.3g} k"
    expect(picture).to_have_attribute("aria-label", re.compile(re.escape(said) + "$"))
    page.get_by_label("Work of").select_option("prompt")
    said = f"O(n²), {2 * full * 1001 / 2 / 1e6:.3g} M; Linear attention, O(n), {2 * linear * 1000 / 1e6:.3g} M;"
    expect(picture).to_have_attribute("aria-label", re.compile(re.escape(said)))


def test_axes_without_logarithms(open_page):
    page = open_page("memory?tokens=131072")
    chart = page.locator(".u-over").first
    box = chart.bounding_box()

    def middle():
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        at = page.locator(".legend").first.locator("li").last
        expect(at).to_contain_text("at ")
        return at.inner_text().strip()

    assert middle() == "at 3,162"  # between 1 and ten million
    page.get_by_label("Straight axes").check()
    expect(page).to_have_url(re.compile("linear=true"))
    page.mouse.move(0, 0)
    box = chart.bounding_box()
    assert middle() == "at 81.9 k"  # between 0 and 163,840
    shown = chart.evaluate("() => document.querySelector('.plot').getAttribute('aria-label')")
    assert shown.startswith("Bytes against tokens. At 131,072 tokens")


def test_a_line_is_hidden_by_a_click_on_its_name(open_page):
    page = open_page("memory", color_scheme="light")
    count = """() => { const canvas = document.querySelector('.u-wrap canvas'), data = canvas.getContext('2d')
        .getImageData(0, 0, canvas.width, canvas.height).data; let found = 0;
      for (let i = 0; i < data.length; i += 4) found += data[i] === 0xb3 && data[i + 1] === 0x26 && data[i + 2] === 0x1e;
      return found; }"""
    page.wait_for_function(f"({count})() > 100")
    name = page.locator(".legend").first.get_by_role("button", name="Full attention")
    name.click()
    expect(name).to_have_attribute("aria-pressed", "false")
    page.wait_for_function(f"({count})() === 0")
    name.click()
    page.wait_for_function(f"({count})() > 100")


def test_the_length_is_a_slider_for_the_keyboard(open_page):
    page = open_page("memory?tokens=1")
    slider = page.get_by_role("slider", name="Length")
    slider.focus()
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuetext", "10,000,000 tokens")
    expect(page).to_have_url(re.compile("tokens=10000000"))
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "1 token")


def test_presets_heads_hybrid_batch_and_bytes(open_page):
    page = open_page("memory?tokens=10000")
    page.get_by_label("Preset").select_option("Llama 3.1 70B")
    page.get_by_label("Sequences at once").fill("3")
    page.get_by_label("Cache precision").select_option("1")
    per_token = 3 * 2 * 80 * 8 * 128
    expect_bytes(page, "Full attention", f"{10000 * per_token / GIB:.2f} GiB")
    page.get_by_label("Heads share keys").uncheck()
    unshared = f"{10000 * 8 * per_token / GIB:.1f} GiB"
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
    ends = ["does not fit", "does not fit", "any length"]
    expect(row(page, "Linear attention")).to_have_text([re.compile("GiB$"), *(re.compile(f"^{it}$") for it in ends)])


def test_a_link_carries_the_settings(open_page):
    page = open_page("memory")
    page.get_by_label("Preset").select_option("SmolLM2 135M")
    page.get_by_label("Layers", exact=True).fill("12")
    page.get_by_label("Count the weights").check()
    page.get_by_label("What they keep").select_option("latte")
    page.get_by_label("Latents per head").fill("7")
    page.get_by_label("One state per query head").check()
    expect(page).to_have_url(re.compile("layers=12.*kind=latte.*size=7.*perQuery=true.*weights=true"))
    expect(page.locator(".formulas")).to_contain_text("Weightscounted", use_inner_text=False)
    numbers = page.locator("tbody td").all_inner_texts()
    other = open_page(page.url.split("#/")[1])
    expect(other.locator("tbody td")).to_have_text(numbers)
    expect(other.get_by_label("Layers", exact=True)).to_have_value("12")
    expect(other.get_by_label("Preset")).to_have_value("")


def test_a_link_with_nonsense_is_no_harm(open_page):
    page = open_page("memory?tokens=-5&layers=1e99&batch=x&preset=%3Cscript%3E&gqa=maybe&constructor=3&kind=toString&size=-1")
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


def test_the_view_alone_opens_from_a_file(dist, browser):
    subprocess.run(["npm", "run", "-s", "visualiser"], cwd=dist.parent, check=True)
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
    page.goto((dist.parent / "visualiser.html").as_uri() + "#/memory?tokens=131072&kind=latte")
    expect(row(page, "Full attention")).to_have_text(["16.0 GiB", "65,536 tokens", "196,608 tokens", "655,360 tokens"])
    page.get_by_role("link", name="a book of a million tokens").click()
    expect(row(page, "Full attention").first).to_have_text("122 GiB")
    expect(page.locator(".u-over")).to_have_count(2)
    assert not complaints
    page.close()
