"""The evaluation view, with files as the program writes them."""

import json
import re
import subprocess

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow  # a browser


@pytest.fixture(scope="module", name="files")
def fixture_files(program, talker, tmp_path_factory, root):
    """Results of `eval niah` and `eval ppl` for a real model."""
    folder = tmp_path_factory.mktemp("results")
    text = folder / "text.txt"
    text.write_text((root / "README.md").read_text() * 3)
    base = [str(program), "eval"]
    short = ["--lengths", "288,352", "--samples", "1"]
    subprocess.run([*base, "niah", talker, *short, "--out", folder / "niah.jsonl"], check=True, capture_output=True)
    options = ["--lengths", "64,128", "--tokens", "64", "--data", text, "--out", folder / "ppl.jsonl"]
    subprocess.run([*base, "ppl", talker, *options], check=True, capture_output=True)
    return folder


def choose(page, *paths):
    page.set_input_files("input[type=file]", paths)


def numbers(page, section):
    details = page.locator("section", has=page.get_by_role("heading", name=section)).locator("details").first
    details.locator("summary").click()
    expect(details).to_have_attribute("open", "")
    return details.locator("td")


def test_charts_of_what_was_found_again_and_of_perplexity(open_page, files):
    page = open_page("evaluation")
    choose(page, files / "niah.jsonl", files / "ppl.jsonl")
    lines = [json.loads(it) for it in (files / "niah.jsonl").read_text().splitlines()]
    scores = [100 * it["score"] for it in lines if "task" in it]
    expect(numbers(page, "RULER")).to_have_text([f"{it:.1f} %" for it in scores])
    lines = [json.loads(it) for it in (files / "ppl.jsonl").read_text().splitlines()]
    found = [float(it.replace(",", "")) for it in numbers(page, "Perplexity").all_inner_texts()]
    assert found == pytest.approx([it["perplexity"] for it in lines if "perplexity" in it], rel=1e-3)
    expect(page.locator(".u-over")).to_have_count(2)


def test_charts_of_a_sweep(open_page, root, shot):
    page = open_page("evaluation")
    path = root / "experiments/results/cortado-macchiato-gap/results.jsonl"
    choose(page, path)
    rows = [json.loads(it) for it in path.read_text().splitlines()]
    first = [it["curve"]["validation_loss"][0] for it in rows if it["settings"] == {"mixer.mixer": "softmax"}]
    assert len(first) == 3
    assert float(numbers(page, "Sweep").first.inner_text()) == pytest.approx(sum(first) / 3, rel=1e-3)
    expect(page.locator("main")).to_contain_text("15 runs have ended well")
    expect(page.locator(".u-over")).to_have_count(2)
    expect(page.locator(".legend").first).to_contain_text("softmax")
    page.get_by_label("Across").select_option("parameters")
    page.get_by_label("Up").select_option("perplexity")
    expect(page.get_by_role("img", name="perplexity against parameters")).to_have_count(1)
    shot(page, "sweep")


def choice(page, label):
    return page.get_by_role("combobox", name=label, exact=True).locator("option:checked")


def test_a_sweep_says_what_it_was_about(open_page, root):
    page = open_page("evaluation")
    folder = root / "experiments/results/blurry-window-mqar-laptop"
    choose(page, folder / "sweep.json", folder / "results.jsonl")
    about = json.loads((folder / "sweep.json").read_text())
    assert about["metric"] == "accuracy"
    expect(choice(page, "Curve of")).to_have_text("accuracy")
    expect(choice(page, "Up")).to_have_text("accuracy")
    expect(page.locator("main")).to_contain_text("Judged by accuracy, at scale laptop")
    expect(page.locator("main code").last).to_have_text(about["command"])
    expect(page.locator(".problem")).to_have_count(0)
    # The plan alone has no results.
    other = open_page("evaluation")
    choose(other, folder / "sweep.json")
    expect(other.locator(".problem")).to_contain_text("its results.jsonl has the results")
    choose(other, folder / "results.jsonl")
    expect(other.locator(".problem")).to_have_count(0)
    expect(choice(other, "Curve of")).to_have_text("accuracy")


def test_lines_are_called_by_what_tells_them_apart(open_page, root, tmp_path):
    page = open_page("evaluation")
    choose(page, root / "experiments/results/blurry-window-mqar-laptop/results.jsonl")
    names = page.locator(".legend").first.locator("button[aria-pressed]")
    expect(names.first).to_have_text("softmax, learned positions, context 128, dim 32, learning rate 0.001")
    expect(names.filter(has_text="blurry window, slots 17, period 34, no decay, dim 32, learning rate 0.003")).to_have_count(1)
    expect(names.filter(has_text=re.compile("heads|_|[{}]"))).to_have_count(0)
    rows = [{"name": "hybrid", "layers": [{"repeat": 2, "mixer": {"mixer": "gla"}}], "dim": 8}, {"mixer": {"mixer": "gla", "taps": 4}}]
    lines = [{"id": str(i), "settings": it, "status": "done", "loss": i, "curve": {"step": [1], "loss": [i]}} for i, it in enumerate(rows)]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(it) + "\n" for it in lines))
    page.get_by_role("button", name="Clear").click()
    choose(page, path)
    expect(names).to_have_text(["hybrid, dim 8", "gla, taps 4"])


def test_the_same_file_twice_counts_once(open_page, root):
    page = open_page("evaluation")
    for _ in range(2):
        choose(page, root / "experiments/results/cortado-macchiato-gap/results.jsonl")
        expect(page.locator("main")).to_contain_text("15 runs have ended well")


def test_the_example(open_page):
    page = open_page("evaluation", color_scheme="light")
    page.get_by_role("button", name="Show an example").click()
    expect(page.locator("main")).to_contain_text("15 runs have ended well")
    expect(page.locator(".u-over")).to_have_count(2)
    # Softmax's three runs have the largest state; none is lost at the edge.
    bands = """() => { const canvas = document.querySelectorAll('.u-wrap canvas')[1];
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let bands = 0, inside = false;
      for (let y = 0; y < canvas.height; ++y) {
        let there = false;
        for (let x = 0; x < canvas.width; ++x) {
          const at = 4 * (y * canvas.width + x);
          there ||= data[at] === 0xb3 && data[at + 1] === 0x26 && data[at + 2] === 0x1e;
        }
        bands += there && !inside;
        inside = there;
      }
      return bands; }"""
    page.wait_for_function(f"({bands})() === 3")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".u-over")).to_have_count(0)


def test_every_kind_of_results_in_the_repository_is_drawn(open_page, root):
    """Draws one of the files whose lines have equal keys."""
    kinds = {}
    for path in sorted((root / "experiments" / "results").glob("*/results.jsonl")):
        kinds.setdefault(tuple(sorted(json.loads(path.read_text().splitlines()[0]))), path)
    assert len(kinds) > 2
    for path in kinds.values():
        page = open_page("evaluation")
        choose(page, path)
        page.wait_for_selector(".u-over")
        expect(page.locator(".problem"), str(path)).to_have_count(0)


def test_half_a_line_and_other_files_are_said(open_page, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"setting":"command","value":"eval ppl"}\n{"model":"a","length":64,"perplexity":null,"loss":9}\n{"mo')
    page = open_page("evaluation")
    choose(page, path)
    expect(page.locator(".problem")).to_contain_text("line 3")
    expect(page.get_by_role("heading", name="Perplexity")).to_have_count(1)


def test_files_can_be_dropped(open_page):
    page = open_page("evaluation")
    page.evaluate("""() => {
      const data = new DataTransfer();
      const line = '{"model":"a","task":"single_1","length":64,"index":0,"correct":true}';
      data.items.add(new File([line], 'a.jsonl'));
      document.querySelector('.drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}));
    }""")
    expect(numbers(page, "RULER")).to_have_text(["100.0 %"])
