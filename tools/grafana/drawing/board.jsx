// Rows and panels at the places that the dashboard gives them: 24 columns, 38 px for a unit of height.
import React from "react";
import { dateTime } from "@grafana/data";
import { PanelChrome } from "@grafana/ui";

import { drawn } from "./panels.jsx";

const UNIT_PX = 38;
const GAP_PX = 8;
const HEAD_PX = 74;

export function Board({ board, screen, answers, theme }) {
  const column = (window.innerWidth - GAP_PX) / 24;
  const range = { from: dateTime(1000 * screen.from), to: dateTime(1000 * screen.to) };
  const timeRange = { ...range, raw: range };
  const bottom = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div style={{ position: "relative", height: HEAD_PX + bottom * UNIT_PX + GAP_PX }}>
      <Head board={board} screen={screen} theme={theme} />
      {board.panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        const place = {
          position: "absolute",
          left: GAP_PX + x * column,
          top: HEAD_PX + y * UNIT_PX,
          width: w * column - GAP_PX,
          height: h * UNIT_PX - GAP_PX,
        };
        return (
          <div key={`${panel.type} ${panel.id ?? panel.title}`} style={place}>
            {panel.type === "row" ? (
              <h4 style={{ margin: "6px 0 0" }}>{panel.title}</h4>
            ) : (
              <Panel panel={panel} answer={answers.get(panel.id)} {...{ screen, theme, timeRange, place }} />
            )}
          </div>
        );
      })}
    </div>
  );
}

function Head({ board, screen, theme }) {
  const chosen = board.templating.list
    .filter((one) => one.type !== "datasource")
    .map((one) => `${one.name} = ${one.includeAll ? "All" : screen.values[one.name]}`);
  const minutes = Math.round((screen.to - screen.from) / 60);
  return (
    <div style={{ padding: "8px 8px 0", height: HEAD_PX, overflow: "hidden" }}>
      <h3 style={{ margin: 0 }}>{board.title}</h3>
      <div style={{ color: theme.colors.text.secondary }}>
        {board.description.replace(/\n+/g, " ")} · {chosen.join(" · ")} · {minutes} min
      </div>
    </div>
  );
}

function Panel({ panel, answer, screen, theme, timeRange, place }) {
  const status = answer.error ? { message: answer.error } : {};
  return (
    <PanelChrome
      title={panel.title}
      description={panel.description}
      width={place.width}
      height={place.height}
      statusMessage={status.message}
    >
      {(width, height) => drawn({ panel, frames: answer.frames, screen, theme, timeRange, width, height })}
    </PanelChrome>
  );
}
