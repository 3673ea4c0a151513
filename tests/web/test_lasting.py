"""What survives a reload, a server's end, and a second tab."""

import datetime
import json
import subprocess

import pytest
from playwright.sync_api import expect
from web_steps import (
    WAIT_MS, answer_of, ask, kept, limit_answers, send, slow_down, stop, text_of, wait_ended, wait_words, without_end,
)  # fmt: skip

pytestmark = pytest.mark.slow  # a browser

STORY = "Tell me a long story about a lighthouse and its keeper."


def goes_on(page, cut):
    """The same text comes again, and more."""
    page.get_by_role("button", name="Go on").click()
    wait_words(page, len(cut))
    whole = stop(page)
    assert len(whole) > len(cut) and whole.startswith(cut[: len(cut) // 2])


def test_a_reload_in_the_middle_of_an_answer(open_page):
    page = open_page()
    without_end(page)
    send(page, STORY)
    wait_words(page, 60)
    before = text_of(page)
    page.reload()
    page.wait_for_selector(".answer.cut")
    cut = text_of(page)
    assert cut.startswith(before[:40])
    expect(answer_of(page)).to_contain_text("closed while this was being written")
    goes_on(page, cut)


AS_IF_WRITING = """(tab) => {
  const key = Object.keys(localStorage).find((it) => it.startsWith('cortado.conversation.'));
  const kept = JSON.parse(localStorage.getItem(key));
  kept.changed = Date.now();
  for (const turn of Object.values(kept.turns)) {
    turn.answers[0].state = 'writing';
    if (tab) turn.answers[0].tab = tab;
  }
  localStorage.setItem(key, JSON.stringify(kept));
}"""


def test_what_a_tab_that_crashed_was_writing_is_cut(open_page):
    page = open_page()
    limit_answers(page, 4)
    ask(page, "Hello.")
    page.wait_for_function("Object.values(localStorage).some((it) => it.includes('\"state\":\"done\"'))")
    # The clock is fixed, so that times do not depend on the browser's speed.
    now = datetime.datetime.now()
    page.clock.set_fixed_time(now)
    # This tab's own answer: nobody is writing it.
    page.evaluate(AS_IF_WRITING, "")
    page.reload()
    expect(page.locator(".answer")).to_have_class("answer cut")
    # Another tab's recent answer: that tab may still write, until it is silent for a while.
    page.evaluate(AS_IF_WRITING, "another")
    page.reload()
    expect(page.locator(".answer")).to_have_class("answer writing")
    page.clock.set_fixed_time(now + datetime.timedelta(seconds=6))
    expect(page.locator(".answer")).to_have_class("answer cut")


def test_conversations_are_kept_and_can_be_deleted(open_page):
    page = open_page()
    limit_answers(page, 4)
    ask(page, "The first conversation.")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "The second conversation.")
    page.reload()
    expect(page.locator(".words")).to_have_text("The second conversation.")
    page.get_by_role("button", name="The first conversation.", exact=True).click()
    expect(page.locator(".words")).to_have_text("The first conversation.")
    page.get_by_role("button", name="Delete The first conversation.").click()
    expect(page.locator(".turn")).to_have_count(0)
    assert len(kept(page)) == 1


def test_a_conversation_that_was_deleted_can_be_had_back(open_page):
    page = open_page()
    limit_answers(page, 4)
    said = ask(page, "The only conversation.")
    page.get_by_role("button", name="Delete The only conversation.").click()
    expect(page.locator("aside li, .turn")).to_have_count(0)
    expect(page.locator(".deleted")).to_contain_text("The only conversation.")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".words")).to_have_text("The only conversation.")
    expect(page.locator(".deleted button")).to_have_count(0)
    page.reload()
    expect(page.locator(".words")).to_have_text("The only conversation.")
    assert text_of(page) == said and len(kept(page)) == 1


def test_what_is_deleted_is_not_written_any_more_and_stays_deleted(open_page):
    page = open_page()
    without_end(page)
    send(page, STORY)
    wait_words(page, 20)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/completions")):
        page.get_by_role("button", name=f"Delete {STORY}").click()
    expect(page.locator("aside li, .turn")).to_have_count(0)
    page.get_by_role("button", name="New conversation").click()
    assert kept(page) == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".answer")).to_have_class("answer stopped")
    assert len(text_of(page)) > 20


def test_a_second_tab_does_not_cut_what_the_first_has_written(open_page):
    page = open_page()
    limit_answers(page, 60)
    send(page, STORY)
    wait_words(page, 20)
    other = page.context.new_page()
    open_page.watch(other)
    other.goto(page.url)
    other.wait_for_selector(".answer")
    assert other.locator(".answer.cut").count() == 0
    whole = wait_ended(page)
    other.wait_for_selector(".answer.done")
    expect(answer_of(other).locator(".text")).to_have_text(whole, use_inner_text=True)
    assert text_of(other) == whole


def test_the_server_is_killed_and_comes_back(open_page, server, shot):
    page = open_page()
    without_end(page)
    send(page, STORY)
    wait_words(page, 60)
    server.kill()
    page.wait_for_selector(".status.gone")
    page.wait_for_selector(".answer.cut")
    cut = text_of(page)
    expect(page.locator(".status")).to_contain_text("does not answer")
    expect(answer_of(page)).to_contain_text("Cut:")
    shot(page, "gone")
    server.start()
    page.wait_for_selector(".status.back")
    assert text_of(page) == cut
    goes_on(page, cut)


def test_a_full_browser_is_said(open_page):
    page = open_page()
    limit_answers(page, 4)
    page.evaluate("""() => { for (let size = 1 << 22; size > 16; size >>= 1) {
      try { for (let i = 0; ; ++i) localStorage.setItem(`filler.${size}.${i}`, 'x'.repeat(size)); } catch {}
    } }""")
    ask(page, "Is there room?")
    expect(page.locator("aside .problem")).to_contain_text("keeps no more")


def test_a_server_that_wants_a_key(page_of, talker, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("open sesame\n")
    page = page_of(talker, "--weights", "int8", "--api-key-file", keys, status="locked")
    expect(page.get_by_role("alert")).to_have_count(0)
    give_key(page, "close sesame")
    expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    expect(page.get_by_label("API key")).to_be_focused()
    give_key(page, "open sesame")
    page.wait_for_selector(".status.ready")
    limit_answers(page, 4)
    assert ask(page, "Hello.", talker.name)
    # The key is no longer valid: the answer fails, and the page asks for another key.
    no = {"error": {"message": "the key is wrong"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, json=no))
    send(page, "Hello again.")
    page.wait_for_selector(".status.locked")
    expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    assert "open sesame" not in page.evaluate("JSON.stringify(localStorage)")


def give_key(page, key):
    page.get_by_label("API key").fill(key)
    expect(page.get_by_role("button", name="Use it")).to_be_enabled()
    page.keyboard.press("Enter")


def test_a_model_that_was_not_taught_to_talk_goes_on_with_the_text(page_of, program, root, tmp_path):
    """`make demo`'s model has no chat template; the page still continues its text, turn after turn."""
    config = {"dim": 16, "heads": 2, "layers": 1, "mixer": {"mixer": "gla"},
              "training": {"batch": 2, "context": 16, "steps": 2, "warmup": 0, "tokenizer": "byte"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [str(program), "train", tmp_path / "config.json", "--data", root / "data/tinyshakespeare.txt", "--out", tmp_path / "run"]
    subprocess.run(command, check=True, capture_output=True)
    page, asked = page_of(tmp_path / "run"), []
    page.on("requestfinished", lambda it: asked.append(it.post_data) if it.url.endswith("/v1/chat/completions") else None)
    limit_answers(page, 30)
    expect(page.locator(".welcome")).to_contain_text("continues the text")
    expect(page.get_by_role("button", name="First Citizen:")).to_be_enabled()
    first = ask(page, "ROMEO:", "run")
    ask(page, "JULIET:", "run")
    said = next(iter(kept(page)[0]["turns"].values()))["answers"][0]["text"]
    contents = [[message["content"] for message in json.loads(body)["messages"]] for body in asked]
    assert first and contents == [["ROMEO:"], ["ROMEO:", said, "JULIET:"]]
