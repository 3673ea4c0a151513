// Renders a model's Markdown. HTML in it stays text, and nothing is fetched.
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
    // Images stay text: a browser would fetch them from an address that the model chose.
    image: ({ raw }: Tokens.Image) => escaped(raw),
    link(token: Tokens.Link) {
      const text = this.parser.parseInline(token.tokens);
      if (!/^(https?:|mailto:)/i.test(token.href)) return escaped(token.raw);
      return `<a href="${escaped(token.href)}" rel="noopener noreferrer nofollow" target="_blank">${text}</a>`;
    },
    // Makes no real headings: those structure the page.
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
  // The purifier drops `target` by default; ours always comes with `rel`.
  if (data.attrName === "target" && data.attrValue === "_blank") data.forceKeepAttr = true;
});

const Block = memo(
  ({ token }: { token: Token }) => <div class="block" dangerouslySetInnerHTML={{ __html: htmlOf(token) }} />,
  (before: { token: Token }, after: { token: Token }) => before.token.raw === after.token.raw,
);

// Draws by blocks, so that only the last block of a long answer is redrawn.
export const Markdown = memo(({ text }: { text: string }) => {
  const blocks = marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def");
  return <div class="markdown">{blocks.map((token, index) => <Block key={index} token={token} />)}</div>;
});
