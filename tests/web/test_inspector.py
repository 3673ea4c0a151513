"""The inspector: a text as a layer reads it, with the server's numbers."""

import json
import re
import subprocess
import urllib.request

import pytest
from playwright.sync_api import expect
from web_server import Server
from web_steps import LOOKS, ask, limit_answers, overflow, violations, wait_shown

TEXT = "The keeper of the lighthouse lit the lamp. The lamp of the lighthouse was lit by the keeper."
LAYERS = ["lola", "macchiato", "blurry_window", "gla", "mamba"]
pytestmark = [pytest.mark.slow, pytest.mark.mechanism(*LAYERS)]  # a browser


@pytest.fixture(scope="module", name="kinds")
def fixture_kinds(program, root, tmp_path_factory):
    """A small run whose layers have different kinds of memory."""
    run = tmp_path_factory.mktemp("kinds") / "run"
    mixers = [
        {"mixer": "lola", "chunk": 8, "cache": 6},
        {"mixer": "macchiato", "window": 8, "latents": 32},
        {"mixer": "blurry_window", "slots": 9, "period": 18},
        {"mixer": "gla"},
        {"mixer": "mamba"},
    ]
    training = {"steps": 40, "batch": 4, "warmup": 4, "evaluate_every": 40, "tokenizer": "sentencepiece:600"}
    config = {
        "dim": 64, "heads": 4, "layers": [{"mixer": it} for it in mixers], "positions": "rotary", "norm": "rms",
        "context": 64, "training": training,
    }  # fmt: skip
    path = run.parent / "kinds.json"
    path.write_text(json.dumps(config))
    command = [str(program), "train", str(path), "--out", str(run), "--quiet"]
    subprocess.run(command, check=True, capture_output=True, cwd=root)
    return run


@pytest.fixture(scope="module", name="server")
def fixture_server(program, talker, kinds, dist, tmp_path_factory):
    """Replaces the other tests' server; open_page opens this one's page."""
    models = ("--model", f"kinds={kinds}", "--model", f"exact={talker}")
    server = Server(program, (*models, "--weights", "int8", "--page", dist), tmp_path_factory.mktemp("serve"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(name="inspect")
def fixture_inspect(server):
    """inspect(layer) returns the server's inspection of that layer's first head."""

    def call(layer, **fields):
        body = {"model": "kinds", "prompt": TEXT, "layers": [layer], "heads": [0], **fields}
        request = urllib.request.Request(server.address + "/v1/inspect", data=json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            return json.loads(reply.read())

    return call


def show(page, layer=0, text=TEXT):
    page.get_by_role("textbox", name="Text").fill(text)
    page.get_by_role("button", name="Inspect").click()
    wait_shown(page)
    if layer:
        page.get_by_role("combobox", name="Layer").select_option(str(layer))
        wait_layer(page, layer)


def wait_layer(page, layer, head=0):
    """Waits for that head's picture, or for the reason why there is none."""
    words = [f"layer {layer}, head {head}, {LAYERS[layer]}", f"Of {LAYERS[layer]} there are no weights"]
    there = "(words) => words.some((it) => document.querySelector('main').innerHTML.includes(it))"
    page.wait_for_function(there, arg=words)
    wait_shown(page)


def look_at(page, token):
    page.locator(".token").nth(token).click()
    expect(page.locator(".detail h2")).to_contain_text(f"Token {token} ")


def fact(page, name):
    return page.locator(".facts div", has=page.get_by_text(name, exact=True)).locator("dd")


def listed(page, title):
    """Returns the tokens and weights of one of the two lists."""
    place = page.locator(".detail .fields div", has=page.get_by_role("heading", name=title))
    found = [it.inner_text() for it in place.locator("li").all()]
    return [(int(it.split()[0]), float(it.split()[-1])) for it in found if it.strip() and it[0].isdigit()]


def heaviest(weights):
    ranked = sorted(((w, t) for t, w in weights if w), key=lambda it: -abs(it[0]))
    return [w for w, _ in ranked[:5]]


def test_a_token_shows_what_it_reads_and_who_remembers_it(open_page, inspect):
    head = inspect(0)["layers"][0]["heads"][0]
    page = open_page("inspector")
    show(page)
    tokens = page.locator(".token")
    last = len(head["weights"]) - 1
    expect(tokens).to_have_count(last + 1)
    for at in (3, last):
        tokens.nth(at).hover()
        expect(page.locator(".detail h2")).to_contain_text(f"Token {at} ")
        reads = listed(page, "It reads")
        assert [w for _, w in reads] == pytest.approx(heaviest(enumerate(head["weights"][at])), rel=1e-2)
        assert all(head["weights"][at][t] == pytest.approx(w, rel=1e-2) for t, w in reads)
        later = [(t, row[at]) for t, row in enumerate(head["weights"]) if t > at]
        assert [w for _, w in listed(page, "Remembered by")] == pytest.approx(heaviest(later), rel=1e-2)
    # A row of the picture also selects a token: while hovered, or for good on a click.
    picture = page.get_by_role("img", name="Weights")
    box = picture.bounding_box()
    picture.hover(position={"x": box["width"] / 2, "y": 10})
    expect(page.locator(".detail h2")).to_contain_text("Token 0 ")
    page.get_by_role("heading", name="Inspector").hover()
    expect(page.locator(".detail h2")).to_contain_text(f"Token {last} ")
    picture.click(position={"x": box["width"] / 2, "y": 10})
    page.get_by_role("heading", name="Inspector").hover()
    expect(page.locator(".detail h2")).to_contain_text("Token 0 ")


def test_where_tokens_live_and_the_scores_that_decided(open_page, inspect, shot):
    head = inspect(0)["layers"][0]["heads"][0]
    first = head["decisions"][0]
    page = open_page("inspector", height=1100)
    show(page)
    for index, token in enumerate(first["tokens"][:6]):
        look_at(page, token)
        score, stays = first["scores"][index], first["stays"][index]
        said = fact(page, "Score").inner_text().split(";")[0]
        assert said.endswith(f"before token {first['before']} ({'stayed' if stays else 'left for the state'})")
        assert float(said.split()[0]) == pytest.approx(score, rel=1e-2)
        expect(fact(page, "Lives in")).to_have_text(re.compile("^window, then " + ("cache" if stays else "state")))
    picture = page.get_by_role("img", name="Which memory holds each token")
    counts = [head["places"][first["tokens"][5]].count(it) for it in "012"]
    said = f"{counts[0]} in the window, {counts[1]} in the cache, {counts[2]} in the state"
    expect(picture).to_have_attribute("aria-label", re.compile(said + "$"))
    # Hovering the text again shows the mouse's token; the documentation's picture shows one in the middle.
    page.locator(".token").nth(20).hover()
    expect(page.locator(".detail h2")).to_contain_text("Token 20 ")
    shot(page, "inspector")


@pytest.mark.parametrize(
    ("layer", "title"),
    [(1, "Latent states"), (2, "What the slots hold"), (3, "State and gates"), (4, None)],
)
def test_every_kind_of_memory_has_its_picture(open_page, inspect, layer, title):
    page = open_page("inspector")
    show(page, layer)
    head = inspect(layer)["layers"][0]["heads"][0]
    expect(page.get_by_role("combobox", name="Layer").locator("option:checked")).to_have_text(f"{layer}, {LAYERS[layer]}")
    if title is None:
        expect(page.locator("main")).to_contain_text("no weights of tokens")
        return
    expect(page.get_by_role("heading", name=title)).to_have_count(1)
    last = len(head["weights"]) - 1
    if layer == 1:
        best = max(range(len(head["latents"]["p"][last])), key=lambda it: head["latents"]["p"][last][it])
        expect(fact(page, "Chooses")).to_have_text(re.compile("^window" if best == 0 else f"^latent {best} "))
    if layer == 2:
        # The page computes the contents itself, from what was written and kept.
        label = page.get_by_role("img", name="How much of each token").get_attribute("aria-label")
        contents = head["slots"]["contents"]
        most = max(abs(it) for row in contents for it in row)
        assert float(label.rsplit(" ", 1)[1]) == pytest.approx(most, rel=0.06)
        for token in (last, last - 4, last - 9):
            look_at(page, token)
            for part in fact(page, "Held in the end by").inner_text().split(", "):
                _, slot, weight = part.split()
                assert float(weight) == pytest.approx(contents[int(slot) - 1][token], abs=2e-3), (token, part)
    if layer == 3:
        expect(fact(page, "State")).to_have_text(re.compile("^norm "))
        expect(page.locator(".u-over")).to_have_count(2)


def test_the_whole_of_it_by_keyboard(open_page):
    page = open_page("inspector")
    text, tokens = page.get_by_role("textbox", name="Text"), page.locator(".token")

    def tab(role, name):
        page.keyboard.press("Tab")
        expect(page.get_by_role(role, name=name)).to_be_focused()

    text.focus()
    expect(text).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("One two three two one.")
    expect(text).to_have_value("One two three two one.")
    tab("combobox", "Model")
    tab("button", "Inspect")
    page.keyboard.press("Enter")
    wait_layer(page, 0)
    tab("combobox", "Layer")
    page.keyboard.press("ArrowDown")
    wait_layer(page, 1)
    tab("combobox", "Head")
    page.keyboard.press("ArrowDown")
    wait_layer(page, 1, head=1)
    last = tokens.count() - 1
    page.keyboard.press("Tab")
    expect(tokens.nth(last)).to_be_focused()
    for key, at in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", last), ("ArrowRight", last)):
        page.keyboard.press(key)
        expect(tokens.nth(at), key).to_be_focused()
        expect(page.locator(".detail h2")).to_contain_text(f"Token {at} ")
    page.keyboard.press("Tab")
    expect(page.locator(".detail summary")).to_be_focused()
    page.keyboard.press("Enter")  # all numbers
    expect(page.locator(".detail tbody tr")).to_have_count(last + 1)


def test_nothing_moves_from_token_to_token(open_page):
    page = open_page("inspector", width=900)
    for layer in (0, 1, 2, 3):
        show(page, layer)
        places = """() => [...document.querySelectorAll('.tokens, .detail, .panel, .panel canvas, .detail details')]
            .map((it) => JSON.stringify(it.getBoundingClientRect()))"""
        before = page.evaluate(places)
        for token in (0, 9, 17, 30):
            page.locator(".token").nth(token).hover()
            expect(page.locator(".detail h2")).to_contain_text(f"Token {token} ")
            assert page.evaluate(places) == before


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_accessible_and_as_wide_as_the_window(open_page, width, scheme):
    page = open_page("inspector", width=width, color_scheme=scheme)
    for layer in range(5):
        show(page, layer)
        look_at(page, 10)
        page.locator(".detail summary").click()
        expect(page.locator(".detail tbody tr").first).to_be_visible()
        assert violations(page) == [], layer
        assert overflow(page) <= 0, layer
        page.locator(".detail summary").click()
        expect(page.locator(".detail tbody tr")).to_have_count(0)


def test_what_looks_like_html_is_text(open_page):
    page = open_page("inspector")
    text = "<script>document.title = 'gone'</script><img src=x onerror=alert(1)>"
    show(page, text=text)
    assert page.locator("main script, main img").count() == 0
    shown = "".join(page.locator(".token").all_inner_texts()).replace("␣", " ")
    assert text.replace(" ", "") == shown.replace(" ", "")
    expect(page).to_have_title("Inspector - cortado")


def test_a_text_that_is_too_long_and_one_that_is_none(open_page):
    page = open_page("inspector")
    page.get_by_role("textbox", name="Text").fill(" \n ")
    expect(page.get_by_role("button", name="Inspect")).to_be_disabled()
    page.get_by_role("textbox", name="Text").fill("word " * 600)
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".ask .state")).to_contain_text("at most 512 are inspected")
    assert page.locator(".tokens").count() == 0
    show(page)
    expect(page.locator(".ask .problem")).to_have_count(0)


def refuse(page, when):
    """Refuses inspections for which `when(body)` holds."""

    def no(route):
        if when(json.loads(route.request.post_data)):
            return route.fulfill(status=400, json={"error": {"message": "not this one"}})
        return route.continue_()

    page.route("**/v1/inspect", no)


def test_a_failed_inspection_leaves_no_picture_of_another_text(open_page):
    page = open_page("inspector")
    show(page)
    refuse(page, lambda body: body["model"] == "exact")
    page.get_by_role("combobox", name="Model").select_option("exact")
    expect(page.locator(".ask .state")).to_contain_text("not this one")
    expect(page.locator(".tokens, canvas")).to_have_count(0)
    page.get_by_role("combobox", name="Model").select_option("kinds")
    expect(page.locator(".ask .problem")).to_have_count(0)
    page.get_by_role("button", name="Inspect").click()
    wait_shown(page)
    # So does another text of the same model.
    page.unroute("**/v1/inspect")
    refuse(page, lambda body: body["prompt"] == "No.")
    page.get_by_role("textbox", name="Text").fill("No.")
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".ask .state")).to_contain_text("not this one")
    expect(page.locator(".tokens, canvas")).to_have_count(0)


def test_a_failed_layer_is_not_chosen(open_page):
    page = open_page("inspector")
    show(page, 1)
    refuse(page, lambda body: body["layers"] == [3])
    page.get_by_role("combobox", name="Layer").select_option("3")
    expect(page.locator(".ask .state")).to_contain_text("not this one")
    expect(page.get_by_role("combobox", name="Layer")).to_have_value("1")
    expect(page.get_by_role("heading", name="Latent states")).to_have_count(1)


def test_a_late_answer_is_not_shown_under_another_name(open_page):
    page = open_page("inspector")
    held = []
    page.route("**/v1/inspect", lambda route: held.append(route))
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".ask .state")).to_have_text("Reading…")
    page.get_by_role("combobox", name="Model").select_option("exact")
    with page.expect_request("**/v1/inspect"):  # after the first one's answer
        held[0].continue_()
    expect(page.locator(".tokens, canvas")).to_have_count(0)
    held[1].continue_()
    wait_shown(page)
    expect(page.get_by_role("combobox", name="Model")).to_have_value("exact")
    expect(page.locator(".shown .soft").first).to_contain_text("exact, layer 0 (softmax)")


def test_an_example_is_longer_than_windows(open_page):
    page = open_page("inspector", color_scheme="light")
    page.get_by_role("combobox", name="Model").select_option("exact")
    page.get_by_role("button", name="A needle in a long text").click()
    wait_shown(page)
    words = page.locator(".token").all_inner_texts()
    needle = next(index for index, it in enumerate(words) if "secret" in it)
    assert len(words) <= 512 and len(words) - needle > 192  # LoLA's window and its cache, for SmolLM2
    # Each row has its own scale, so nearly every row has a cell of the full colour.
    rows = page.get_by_role("img", name="Weights").evaluate("""(it) => {
      const data = it.getContext('2d').getImageData(0, 0, it.width, it.height).data;
      let rows = 0;
      for (let y = 0; y < it.height; ++y) {
        for (let x = 0; x < it.width; ++x) {
          const at = 4 * (y * it.width + x);
          if (data[at] === 0x0b && data[at + 1] === 0x3d && data[at + 2] === 0x91) { ++rows; break; }
        }
      }
      return rows / it.height; }""")
    assert rows > 0.75
    # A model with many tokens per word gets less of it.
    page.get_by_role("combobox", name="Model").select_option("kinds")
    page.get_by_role("button", name="A needle in a long text").click()
    wait_shown(page)
    assert 64 < page.locator(".token").count() <= 512
    page.get_by_role("button", name="The same words twice").click()
    expect(page.get_by_role("textbox", name="Text")).to_have_value(TEXT)
    wait_shown(page)


def test_a_conversation_of_the_playground(open_page):
    page = open_page()
    page.get_by_role("combobox", name="Model").select_option("exact")
    limit_answers(page, 8)
    said = ask(page, "Name a city.")
    page.get_by_role("button", name="Inspect").click()
    wait_shown(page)
    expect(page.locator("main")).to_contain_text("A conversation of 2 messages")
    text = "".join(page.locator(".token").all_inner_texts()).replace("⏎", "\n").replace("␣", " ")
    assert "<|im_start|>user\nName a city." in text and said[:12] in text
    expect(page.locator(".token").first).to_have_text("<|im_start|>")
    page.get_by_role("button", name="A text instead").click()
    expect(page.get_by_role("textbox", name="Text")).to_be_visible()


def test_another_view_and_back(open_page):
    page = open_page("inspector")
    show(page, 3)
    page.get_by_role("link", name="Memory").click()
    page.wait_for_selector("h1:has-text('Memory of a sequence')")
    page.get_by_role("link", name="Inspector").click()
    expect(page.get_by_role("heading", name="State and gates")).to_have_count(1)


def test_busy_servers_are_waited_for(open_page):
    page = open_page("inspector")
    refused, held, seen = [], [], []

    def once(route):
        if refused:  # it asks again, and waits until the test has seen the first answer's message
            return route.continue_() if seen else held.append(route)
        refused.append(route)
        error = {"message": "another text is being inspected", "type": "rate_limit_error", "param": None, "code": None}
        return route.fulfill(status=429, json={"error": error})

    page.route("**/v1/inspect", once)
    page.get_by_role("button", name="Inspect").click()
    expect(page.locator(".ask .state")).to_contain_text("looks at another text")
    seen.append(True)
    for route in held:
        route.continue_()
    wait_shown(page)
    assert len(refused) == 1
