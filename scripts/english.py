#!/usr/bin/env python3
"""Real English from Debian packages, for converting pretrained models.

Downloads the packages (`apt-get download`: installs nothing, needs no root), extracts the prose of their manuals, and writes it
as one text of about 7 MB: documents in a fixed order, separated by empty lines. The same packages give the same text.
"""

import argparse
import gzip
import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile

# Package, and its files to use.
SOURCES = [
    ("debian-handbook", "usr/share/doc/debian-handbook/html/en-US/*.html"),
    ("developers-reference", "usr/share/developers-reference/developers-reference.html"),
    ("debian-policy", "usr/share/doc/debian-policy/policy.txt.gz"),
    ("python3.11-doc", "usr/share/doc/python3.11/html/tutorial/*.html"),
    ("python3.11-doc", "usr/share/doc/python3.11/html/howto/*.html"),
    ("python3.11-doc", "usr/share/doc/python3.11/html/faq/*.html"),
    ("python3.11-doc", "usr/share/doc/python3.11/html/whatsnew/*.html"),
    ("fortunes", "usr/share/games/fortunes/*"),
]
HELD_OUT = [("debian-reference-en", "usr/share/debian-reference/ch*.en.html")]
ESSAYS = [("anarchism", "usr/share/doc/anarchism/html/secA[1-5].html")]
ALL_ESSAYS = [("anarchism", "usr/share/doc/anarchism/html/sec[A-J][0-9]*.html")]
BLOCKS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "pre", "td", "blockquote", "div"}
SILENT = {"script", "style", "head", "nav", "pre"}


class Prose(html.parser.HTMLParser):
    """Extracts the text of a page, one paragraph per line, without menus and listings."""

    def __init__(self):
        super().__init__()
        self.paragraphs, self.words, self.silent = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.silent += tag in SILENT
        if tag in BLOCKS:
            self.close_paragraph()

    def handle_endtag(self, tag):
        self.silent -= tag in SILENT and self.silent > 0
        if tag in BLOCKS:
            self.close_paragraph()

    def handle_data(self, data):
        if not self.silent:
            self.words.append(data)

    def close_paragraph(self):
        text = " ".join("".join(self.words).split()).replace("¶", "").strip()
        self.words = []
        if len(text) > 40:
            self.paragraphs.append(text)


def document(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = data.decode("utf-8", errors="replace")
    if path.suffix == ".html":
        prose = Prose()
        prose.feed(text)
        prose.close_paragraph()
        return "\n".join(prose.paragraphs)
    return re.sub(r"\n%\n", "\n\n", text)  # fortunes are separated by %


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.txt")
    parser.add_argument("--held-out", action="store_true", help="other manuals, about 0.4 MB, for evaluation")
    parser.add_argument("--essays", action="store_true", help="instead essays on history and politics, about 0.6 MB")
    parser.add_argument("--all-essays", action="store_true", help="these and all others of their book, about 7 MB")
    arguments = parser.parse_args()
    wanted = [(arguments.held_out, HELD_OUT), (arguments.all_essays, ALL_ESSAYS), (arguments.essays, ESSAYS), (True, SOURCES)]
    sources = next(sources for said, sources in wanted if said)
    documents = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        packages = sorted({package for package, _ in sources})
        subprocess.run(["apt-get", "-q", "download", *packages], cwd=root, check=True, stdout=subprocess.DEVNULL)
        for package in packages:
            archive = next(root.glob(f"{package}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", archive, root / package], check=True)
        for package, pattern in sources:
            files = sorted(p for p in (root / package).glob(pattern) if p.is_file() and p.suffix not in (".dat", ".u8"))
            if not files:
                sys.exit(f"[english] {package} has no {pattern}")
            documents += [document(path) for path in files]
    text = "\n\n".join(text.strip() for text in documents if text.strip()) + "\n"
    beside = arguments.out.with_suffix(".part")
    beside.write_text(text)
    beside.replace(arguments.out)
    print(f"{arguments.out}: {len(text):,} characters from {len(documents)} documents of {len(packages)} Debian packages")


if __name__ == "__main__":
    main()
