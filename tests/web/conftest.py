"""Shared by the tests of the page: a real server with the page that was just built, and a real browser."""

import os
import pathlib
import shutil
import subprocess

import pytest
from playwright.sync_api import expect, sync_playwright
from web_server import Server
from web_steps import WAIT_MS, slow_down

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WEB = ROOT / "web"
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium") or "/usr/bin/chromium"
SHOTS = os.environ.get("CORTADO_SCREENSHOTS")
# Browser errors when the server is down or refuses, as in some tests.
EXPECTED = ("ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_NETWORK", "ERR_ABORTED",
            "status of 400", "status of 429")  # fmt: skip
# Long time limits, so that tests do not fail on a busy machine.
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session", name="dist")
def fixture_dist(once):
    """The page, type-checked and built."""

    def build(_):
        if not (WEB / "node_modules" / "typescript").exists():
            subprocess.run(["npm", "ci", "--no-fund", "--no-audit"], cwd=WEB, check=True)
        subprocess.run(["npm", "run", "-s", "build"], cwd=WEB, check=True)

    once("page", build)
    return WEB / "dist"


@pytest.fixture(scope="session", name="talker")
def fixture_talker(smollm2):
    """A model that can chat."""
    return smollm2


@pytest.fixture(scope="session", name="server")
def fixture_server(program, talker, dist, tmp_path_factory):
    """One model with two memories."""
    models = ("--model", f"exact={talker}", "--model", f"window={talker} --memory window --window 64")
    server = Server(program, (*models, "--weights", "int8", "--page", dist), tmp_path_factory.mktemp("serve"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session", name="browser")
def fixture_browser():
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(name="open_page")
def fixture_open_page(browser, server):
    """open_page("memory", width=320) opens a page that must report no errors and call only its server."""
    contexts, complaints = [], []

    def watch(page):
        slow_down(page)

        def on_console(message):
            if message.type == "error" and not any(word in message.text for word in EXPECTED):
                complaints.append(message.text)

        def on_request(request):
            if not request.url.startswith((server.address, "data:", "blob:")):
                complaints.append(f"asked for {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", on_request)

    def open_page(view="chat", width=1280, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        watch(page)
        page.goto(f"{server.address}/#/{view}")
        page.wait_for_selector(".status.ready")
        return page

    open_page.watch = watch
    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(name="page_of")
def fixture_page_of(browser, program, dist, tmp_path):
    """page_of(*words, status="ready", width=1280) opens the page of a new server, `cortado serve WORDS`."""
    servers, pages = [], []

    def page_of(*words, status="ready", width=1280, height=800):
        servers.append(Server(program, (*words, "--page", dist), tmp_path))
        servers[-1].start()
        page = browser.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        page.set_default_timeout(WAIT_MS)
        slow_down(page)
        page.goto(servers[-1].address)
        page.wait_for_selector(f".status.{status}")
        return page

    yield page_of
    for page in pages:
        page.close()
    for server in servers:
        server.kill()


@pytest.fixture(name="shot")
def fixture_shot(root):
    """shot(page, name) saves a picture for the documentation if CORTADO_SCREENSHOTS is set."""

    def take(page, name):
        if not SHOTS:
            return
        path = root / "docs" / "images" / f"serve-{name}.png"
        page.screenshot(path=path)
        assert path.stat().st_size < 200_000

    return take
