// The memory view alone, without a server: `npm run visualiser`.
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/charts.css";
import { render } from "preact";
import { MemoryView } from "./memory/view";
import { watchTheme } from "./shared/theme";

watchTheme();
render(<main id="main" class="memory"><MemoryView /></main>, document.body);
