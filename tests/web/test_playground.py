"""The playground, in a browser, with a real model."""

import json
import re
import subprocess
import urllib.request

import pytest
from playwright.sync_api import expect
from web_steps import (
    answer_of, ask, ask_more, kept, limit_answers, meter, read_again, send, settings, stop, text_of, wait_ended, wait_words,
    without_end,
)  # fmt: skip

pytestmark = pytest.mark.slow  # a browser


def test_an_answer_comes_as_it_is_written(open_page):
    page = open_page()
    without_end(page)
    page.evaluate("""() => { window.lengths = new Set(); new MutationObserver(() =>
      window.lengths.add(document.querySelector('.answer .text')?.innerText.length)).observe(document.body,
      {subtree: true, childList: true, characterData: true}); }""")
    send(page, "What is the capital of France?")
    page.wait_for_function("() => window.lengths.size > 5")
    stop(page)


def test_what_an_answer_took_stands_beside_it(open_page, shot):
    page = open_page()
    limit_answers(page, 60)
    text = ask(page, "What is the capital of France? Then say why a river is useful to a city.")
    assert len(text) > 20
    expect(meter(page, "Speed")).to_contain_text("tokens/s")
    expect(meter(page, "Memory in use")).to_contain_text("MiB")
    expect(meter(page, "With full attention")).to_contain_text("MiB")
    expect(meter(page, "Memory in use")).not_to_contain_text("at most")
    expect(page.locator("aside li")).to_have_count(1)
    shot(page, "playground")


def test_a_second_turn_reads_only_what_is_new(open_page):
    page = open_page()
    limit_answers(page, 12)
    ask(page, "Name a colour that nobody would paint a submarine in, please.")
    said = next(iter(kept(page)[0]["turns"].values()))["answers"][0]["text"]
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "And another?")
    messages = json.loads(request.value.post_data)["messages"]
    assert [it["role"] for it in messages] == ["user", "assistant", "user"] and messages[1]["content"] == said
    read, of = read_again(page)
    assert 0 < read < of / 2


def test_editing_a_turn_makes_a_branch_and_both_stay(open_page):
    page = open_page()
    limit_answers(page, 12)
    first = ask(page, "Name one animal.")
    ask(page, "Name one more animal.")
    page.locator(".turn").nth(0).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your turn").fill("Name one plant.")
    page.get_by_role("button", name="Ask this").click()
    expect(page.locator(".words")).to_have_text(["Name one plant."])
    wait_ended(page)
    branches = page.locator(".turn .branches").first
    expect(branches).to_have_text("‹2 of 2›")
    branches.get_by_role("button", name="The branch before").click()
    expect(page.locator(".words")).to_have_text(["Name one animal.", "Name one more animal."])
    expect(answer_of(page, turn=0).locator(".text")).to_have_text(first, use_inner_text=True)
    assert text_of(page, turn=0) == first


def test_any_turn_can_be_branched(open_page, shot):
    page = open_page()
    limit_answers(page, 12)
    ask(page, "Name one animal of the sea.")
    ask(page, "Is it large?")
    page.locator(".turn").nth(0).get_by_role("button", name="Branch here").click()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".later")).to_contain_text("branch 2")
    ask(page, "Is it small?")
    read, of = read_again(page)
    assert read < of / 2  # the fork resumes from the state after the first turn
    expect(page.locator(".turn").nth(1).locator(".branches")).to_contain_text("2 of 2")
    shot(page, "branch")
    page.locator(".turn").nth(1).get_by_role("button", name="The branch before").click()
    expect(page.locator(".words").nth(1)).to_have_text("Is it large?")


def test_answering_again_is_a_branch_too(open_page):
    page = open_page()
    limit_answers(page, 8)
    ask(page, "Say anything at all.")
    page.get_by_role("button", name="Answer again").click()
    page.wait_for_selector(".branches >> text=2 of 2")
    wait_ended(page)
    assert len(set(turn["answers"][0]["seed"] for turn in kept(page)[0]["turns"].values())) == 2


def test_stop_keeps_what_there_is_and_going_on_writes_more(open_page):
    page = open_page()
    without_end(page)
    send(page, "Tell me a long story about a lighthouse and its keeper.")
    wait_words(page, 60)
    cut = stop(page)
    expect(answer_of(page)).to_contain_text("Stopped.")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector(".answer.waiting, .answer.writing")
    assert len(text_of(page)) >= len(cut) - 5  # the old text stays meanwhile
    wait_words(page, len(cut))
    whole = stop(page)
    assert len(whole) > len(cut)
    assert whole.startswith(cut[: len(cut) // 2])


def test_two_models_answer_side_by_side(open_page, shot):
    page = open_page(width=1600, height=900)
    limit_answers(page, 40)
    page.get_by_label("Compare with").select_option("window")
    ask(page, "Give me three tips for a picnic.", "exact")
    wait_ended(page, "window")
    left, right = (answer_of(page, name).bounding_box() for name in ("exact", "window"))
    assert left["y"] == right["y"] and right["x"] > left["x"] + left["width"] - 1
    exact, window = (meter(page, "Memory in use", name) for name in ("exact", "window"))
    expect(exact).to_have_text(re.compile(r"^[\d.]+ MiB, \+[\d.]+ KiB/token$"))
    expect(window).to_have_text(re.compile(r"^[\d.]+ MiB, constant from (here|[\d.]+ MiB on)$"))
    # On one scale: the longest bar is the full width, and the others are as long as their numbers say.
    numbers, lengths = [], []
    for name in ("exact", "window"):
        for kind in ("Memory in use", "With full attention"):
            place = meter(page, kind, name)
            numbers.append(float(place.inner_text().split()[0]))
            lengths.append(place.locator(".bar > i").evaluate("(it) => parseFloat(it.style.width)"))
    assert max(lengths) == 100
    assert [it / max(numbers) for it in numbers] == pytest.approx([it / 100 for it in lengths], abs=0.02)
    assert numbers[0] == pytest.approx(numbers[1], rel=0.01)  # for a model with full attention both are equal
    shot(page, "side-by-side")


def test_the_memory_beside_full_attention(page_of, talker, program, root, tmp_path, shot):
    """Both find a number that left the window long ago, one in a third of the bytes."""
    learned = root / "data/smollm2/macchiato-cache.safetensors"
    subprocess.run([program, "linearize", talker, "--from", learned, "--out", tmp_path / "memory"], check=True, capture_output=True)
    page = page_of("--model", f"softmax={talker}", "--model", f"memory={tmp_path / 'memory'}", "--weights", "int8", width=1600, height=900)
    page.get_by_label("Compare with").select_option("memory")
    limit_answers(page, 24, temperature=0)
    play = (root / "data/tinyshakespeare.txt").read_text()[:4200]
    cut = play.index("\n\n", 1200)
    hidden = f"{play[:cut]}\n\nThe spare key for the boathouse lies under tile 7302915.{play[cut:]}"
    ask(page, f"{hidden}\n\nUnder which tile lies the spare key for the boathouse?", "softmax")
    wait_ended(page, "memory")
    for name in ("softmax", "memory"):
        assert "7302915" in text_of(page, name)
    expect(meter(page, "Memory in use", "memory")).to_have_text(re.compile(r"^[\d.]+ MiB, constant from (here|[\d.]+ MiB on)$"))
    softmax, memory = (float(meter(page, "Memory in use", name).inner_text().split()[0]) for name in ("softmax", "memory"))
    assert memory < softmax / 2
    shot(page, "one-memory")


def test_the_reading_of_a_long_prompt_is_shown(open_page):
    page = open_page()
    limit_answers(page, 4)
    states = """() => { window.states = new Set(); new MutationObserver(() => {
      for (const it of document.querySelectorAll('.answer .state span')) window.states.add(it.innerText); }).observe(
      document.body, {subtree: true, childList: true, characterData: true}); }"""
    page.evaluate(states)
    ask(page, "The weather was fine that day, and the harbour was quiet. " * 100 + "How was it?")
    _, total = read_again(page)
    told = [it for it in page.evaluate("[...window.states]") if it.startswith("Reading: ")]
    found = [[int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", it)] for it in told]
    assert len(found) > 3 and all(of == total for _, of in found)
    assert [read for read, _ in found] == sorted({read for read, _ in found})


def test_what_was_told_of_an_answer_goes_when_it_is_written_again(open_page):
    page = open_page()
    limit_answers(page, 8)
    ask(page, "Count to ten.")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=429, json={"error": {"message": "not now"}}))
    page.get_by_role("button", name="Go on").click()
    expect(answer_of(page).locator(".state")).to_contain_text("not now")
    for name in ("Speed", "Prompt", "Memory in use"):
        expect(meter(page, name)).to_have_text("–")


def test_examples_are_asked(open_page):
    page = open_page()
    ask_more(page, max_tokens=4)
    example = page.get_by_role("list", name="Examples").get_by_role("button").first
    words = example.inner_text()
    example.click()
    expect(page.locator(".words")).to_have_text(words)
    wait_ended(page)


def test_the_settings_close_by_escape_and_by_a_click_beside_them(open_page):
    page = open_page()
    opened = page.locator("details.settings[open]")
    settings(page, True)
    page.get_by_label("Seed").focus()
    page.keyboard.press("Escape")
    expect(opened).to_have_count(0)
    expect(page.locator(".settings summary")).to_be_focused()
    settings(page, True)
    page.get_by_label("Max tokens").click()
    expect(opened).to_have_count(1)
    page.locator(".composer").click(position={"x": 5, "y": 5})
    expect(opened).to_have_count(0)


def test_settings_are_reset(open_page, server):
    usual = json.loads(urllib.request.urlopen(server.address + "/v1/models/exact").read())["sampling"]
    page = open_page()
    settings(page, True)
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_label("Stop sequences, one per line").fill("END")
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_label("Temperature")).to_have_value("")
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", f"default: {usual['temperature']:.4g}")
    expect(page.get_by_label("Stop sequences")).to_have_value("")


def test_a_text_file_goes_into_the_prompt(open_page, tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("The code word is marmalade. " + "The weather was fine that day. " * 60)
    page = open_page()
    limit_answers(page, 8)
    page.set_input_files(".composer input[type=file]", path)
    expect(page.locator(".chips")).to_contain_text("report.txt")
    ask(page, "What is the code word?")
    assert read_again(page)[1] > 400
    expect(page.locator(".asked summary")).to_contain_text("report.txt")
    binary = tmp_path / "picture.txt"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    page.set_input_files(".composer input[type=file]", binary)
    expect(page.locator(".composer .problem")).to_contain_text("not text")


def test_the_settings_are_sent(open_page):
    page = open_page()
    limit_answers(page, 5, 0)
    settings(page, True)
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Top k").fill("3")
    page.get_by_label("System message").fill("You answer in one word.")
    settings(page, False)
    with page.expect_request("**/v1/chat/completions") as request:
        ask(page, "Hello.")
    body = json.loads(request.value.post_data)
    assert body["max_tokens"] == 5 and body["temperature"] == 0 and body["seed"] == 7 and body["top_k"] == 3
    assert body["messages"][0] == {"role": "system", "content": "You answer in one word."}
    expect(answer_of(page).locator(".state")).to_contain_text("limit")


def test_what_the_server_refuses_is_said(open_page):
    page = open_page()
    settings(page, True)
    page.get_by_label("Stop sequences").fill("\n".join("abcdefghijklmnopqrstuvwxyz"))
    settings(page, False)
    send(page, "Hello.")
    page.wait_for_selector(".answer.failed")
    expect(answer_of(page).locator(".state")).to_contain_text("stop")


TRICKS = """<script>window.caught = 1</script> <img src=x onerror="window.caught = 2">

[link](javascript:window.caught=3) [good](https://example.org/a) ![image](https://example.org/b.png)

<iframe src="https://example.org"></iframe><style>body { display: none }</style>

`<b>` <b onclick="window.caught=4">bold</b> **real** [x](data:text/html,hello)

| a | b |
|---|---|
| <svg onload="window.caught=5"> | 2 |
"""


def plant(page, text):
    """Puts a conversation into the browser's store in which both sides say `text`."""
    ask(page, "Hello.")
    page.evaluate("""(text) => {
      const key = Object.keys(localStorage).find((it) => it.startsWith('cortado.conversation.'));
      const kept = JSON.parse(localStorage.getItem(key));
      for (const turn of Object.values(kept.turns)) { turn.text = text; turn.answers[0].text = text; }
      addEventListener('pagehide', (event) => event.stopImmediatePropagation(), true);
      localStorage.setItem(key, JSON.stringify(kept));
    }""", text)
    page.reload()
    page.wait_for_selector(".turn")


def test_nothing_that_is_said_is_run_or_fetched(open_page):
    page = open_page()
    limit_answers(page, 4)
    plant(page, TRICKS)
    expect(page.locator(".words")).to_have_text(TRICKS)
    assert page.locator(".words").inner_text().strip() == TRICKS.strip()
    answer = page.locator(".markdown")
    for words in ("<script>window.caught = 1</script>", "<svg onload", "![image]("):
        expect(answer).to_contain_text(words)
    expect(answer.locator("strong")).to_have_text("real")
    for tag in ("script", "img", "iframe", "style", "svg", "b"):
        assert answer.locator(tag).count() == 0, tag
    links = answer.locator("a")
    assert [it.get_attribute("href") for it in links.all()] == ["https://example.org/a"]
    assert "noopener" in links.first.get_attribute("rel")
    # A failing answer would by now have failed after the others.
    page.evaluate("new Promise((done) => { const it = new Image(); it.onerror = done; it.src = 'data:image/png,x'; })")
    assert page.evaluate("window.caught") is None
