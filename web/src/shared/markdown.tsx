// What a model writes, as Markdown. HTML in it stays text, and nothing is fetched from anywhere.
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { memo } from "preact/compat";

const TAGS = ["p", "strong", "em", "del", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br", "a", "div",
  "table", "thead", "tbody", "tr", "th", "td"];
const ATTRIBUTES = ["href", "rel", "target", "class", "tabindex", "start"];

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => escaped(text),
    // Shown as it was written: an image would be fetched from an address that the model chose.
    image: ({ raw }: Tokens.Image) => escaped(raw),
    link(token: Tokens.Link) {
      const text = this.parser.parseInline(token.tokens);
      if (!/^(https?:|mailto:)/i.test(token.href)) return escaped(token.raw);
      return `<a href="${escaped(token.href)}" rel="noopener noreferrer nofollow" target="_blank">${text}</a>`;
    },
    // Not the page's own headings, whose order means something.
    heading(token: Tokens.Heading) {
      return `<p class="heading"><strong>${this.parser.parseInline(token.tokens)}</strong></p>`;
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? "[x] " : "[ ] "),
    code: ({ text }: Tokens.Code) => `<pre tabindex="0"><code>${escaped(text)}</code></pre>`,
    table(token: Tokens.Table) {
      const cells = (row: Tokens.TableCell[], tag: string): string =>
        row.map((cell) => `<${tag}>${this.parser.parseInline(cell.tokens)}</${tag}>`).join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      return `<div class="scroll" tabindex="0"><table><thead><tr>${cells(token.header, "th")}</tr></thead>`
        + `<tbody>${rows}</tbody></table></div>`;
    },
  },
});

function htmlOf(token: Token): string {
  return DOMPurify.sanitize(marked.parser([token]), { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: [...ATTRIBUTES] });
}

DOMPurify.addHook("uponSanitizeAttribute", (_node, data) => {
  // `target` is left out by the purifier otherwise; ours is always followed by `rel`.
  if (data.attrName === "target" && data.attrValue === "_blank") data.forceKeepAttr = true;
});

const Block = memo(
  ({ token }: { token: Token }) => <div class="block" dangerouslySetInnerHTML={{ __html: htmlOf(token) }} />,
  (before: { token: Token }, after: { token: Token }) => before.token.raw === after.token.raw,
);

// By blocks, so that of a long answer only what is being written is drawn again.
export const Markdown = memo(({ text }: { text: string }) => {
  const blocks = marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
  return <div class="markdown">{blocks.map((token, index) => <Block key={index} token={token} />)}</div>;
});
