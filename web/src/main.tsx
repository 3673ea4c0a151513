import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/playground.css";
import "./styles/charts.css";
import "./styles/inspector.css";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { watchServer } from "./api/status";
import { restore } from "./chat/store";
import { Playground } from "./chat/playground";
import { EvaluationView } from "./evaluation/view";
import { InspectorView } from "./inspector/view";
import { MemoryView } from "./memory/view";
import { Header } from "./shared/header";
import { watchTheme } from "./shared/theme";

const VIEWS = {
  chat: { title: "Playground", view: Playground },
  memory: { title: "Memory", view: MemoryView },
  evaluation: { title: "Evaluation", view: EvaluationView },
  inspector: { title: "Inspector", view: InspectorView },
};
type Route = keyof typeof VIEWS;

function routeOf(hash: string): Route {
  const name = hash.replace(/^#\//, "").split("?")[0]!;
  return name in VIEWS ? (name as Route) : "chat";
}

function App() {
  const [route, setRoute] = useState(routeOf(location.hash));
  useEffect(() => {
    const follow = () => setRoute(routeOf(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    document.title = `${VIEWS[route].title} - cortado`;
  }, [route]);
  const View = VIEWS[route].view;
  const links = Object.entries(VIEWS).map(([name, { title }]) => ({ name, title }));
  return (
    <>
      <a class="skip" href="#main" onClick={skipToMain}>Skip to the content</a>
      <Header links={links} route={route} />
      <main id="main" tabIndex={-1} class={route}><View /></main>
    </>
  );
}

// A plain link to #main would change the view, which the hash names.
function skipToMain(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

watchTheme();
restore();
watchServer();
render(<App />, document.body);
