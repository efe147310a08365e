// One dashboard, drawn by Grafana's own components from its JSON and a running Prometheus.
// Address: ?board=NAME&from=UNIX&to=UNIX&window=SECONDS&theme=light|dark
import React from "react";
import { createRoot } from "react-dom/client";
import "@fontsource/inter/400.css";
import "@fontsource/inter/500.css";
import { createTheme, ThemeContext } from "@grafana/data";
import { GlobalStyles } from "@grafana/ui";

import { Board } from "./board.jsx";
import { registerFields } from "./fields.js";
import { Screen } from "./queries.js";

const asked = Object.fromEntries(new URLSearchParams(window.location.search));
const response = await fetch(`dashboards/${asked.board}.json`);
if (!response.ok) {
  throw new Error(`dashboards/${asked.board}.json: ${response.status}`);
}
const board = await response.json();
registerFields(board);
const theme = createTheme({ colors: { mode: asked.theme ?? "light" } });
document.body.style.background = theme.colors.background.canvas;
const screen = new Screen(board, Number(asked.from), Number(asked.to), Number(asked.window));
const drawn = await screen.answers();
// Charts measure their texts before anything on the page has asked for the font.
await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));

createRoot(document.getElementById("board")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Board board={board} screen={screen} answers={drawn} theme={theme} />
  </ThemeContext.Provider>,
);
const charts = board.panels.filter((panel) => panel.type === "timeseries" && drawn.get(panel.id).frames.length);
document.body.dataset.charts = charts.length;
document.title = "ready";
