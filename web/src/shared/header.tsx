import { useState } from "preact/hooks";
import { status, unlock } from "../api/status";
import { useSignal } from "./store";
import { type Theme, theme } from "./theme";

const WORDS = {
  asking: "Asking the server…",
  ready: "Server ready",
  gone: "Server does not answer; trying again",
  back: "Server is back",
  locked: "Server needs a key",
};

export function Header({ links, route }: { links: { name: string; title: string }[]; route: string }) {
  useSignal(status.changed);
  return (
    <header>
      <span class="brand">cortado</span>
      <nav aria-label="Views">
        {links.map(({ name, title }) => (
          <a key={name} href={`#/${name}`} aria-current={name === route ? "page" : undefined}>{title}</a>
        ))}
      </nav>
      <span class={`status ${status.state}`} role="status" title={WORDS[status.state]}>
        <span class="said">{WORDS[status.state]}</span>
      </span>
      <ThemeSwitch />
      {status.state === "locked" && <KeyForm />}
    </header>
  );
}

function ThemeSwitch() {
  const [value, setValue] = useState(theme.get());
  const choose = (chosen: Theme) => {
    theme.set(chosen);
    setValue(chosen);
  };
  return (
    <label class="theme">
      <span class="hidden">Colours</span>
      <select value={value} onChange={(event) => choose(event.currentTarget.value as Theme)}>
        <option value="auto">◐ Auto</option>
        <option value="light">☀ Light</option>
        <option value="dark">☾ Dark</option>
      </select>
    </label>
  );
}

function KeyForm() {
  const [key, setKey] = useState("");
  const send = (event: Event) => {
    event.preventDefault();
    void unlock(key);
  };
  return (
    <form class="key" onSubmit={send}>
      <label>
        API key, kept until this tab is closed
        <input type="password" autocomplete="off" value={key} aria-invalid={status.wrongKey}
          onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <button type="submit" disabled={!key}>Use it</button>
      {status.wrongKey && <p class="problem" role="alert">The server does not know this key. It takes those of the file
        that was given to it as --api-key-file.</p>}
    </form>
  );
}
