// What is inside a panel, by its kind.
import React from "react";
import { applyFieldOverrides, FieldType, getDisplayValueAlignmentFactors, getFieldDisplayValues } from "@grafana/data";
import { BigValue, TimeSeries, VizRepeater } from "@grafana/ui";

import { Heatmap } from "./heatmap.jsx";

export function drawn(asked) {
  const { panel, frames, theme } = asked;
  if (!frames.length) {
    return <p style={{ padding: 16, color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</p>;
  }
  const Kind = { timeseries: Lines, stat: Figures, heatmap: Heatmap }[panel.type];
  if (!Kind) {
    throw new Error(`nothing here draws a panel of the kind ${panel.type}: ${panel.title}`);
  }
  return <Kind {...asked} frames={configured(asked)} />;
}

/** Frames with the options that the panel gives their fields, worked out by Grafana. */
function configured({ panel, frames, screen, theme }) {
  const colour = { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" };
  const defaults = { color: colour, ...panel.fieldConfig.defaults };
  const made = applyFieldOverrides({
    data: frames,
    fieldConfig: { defaults, overrides: panel.fieldConfig.overrides ?? [] },
    replaceVariables: screen.fill,
    theme,
    timeZone: "utc",
  });
  made
    .flatMap((frame) => frame.fields.filter((field) => field.type === FieldType.number))
    .forEach((field, at) => (field.state = { ...field.state, seriesIndex: at }));
  return made;
}

function Lines({ panel, frames, timeRange, width, height }) {
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      timeRange={timeRange}
      timeZone="utc"
      width={width}
      height={height}
      legend={panel.options.legend}
      options={panel.options}
    />
  );
}

function Figures({ panel, frames, screen, theme, width, height }) {
  const { options } = panel;
  const values = () =>
    getFieldDisplayValues({
      fieldConfig: panel.fieldConfig,
      reduceOptions: options.reduceOptions,
      replaceVariables: screen.fill,
      theme,
      data: frames,
      sparkline: options.graphMode !== "none",
      timeZone: "utc",
    });
  const one = ({ value, alignmentFactors, width: w, height: h, count }) => (
    <BigValue
      value={value.display}
      count={count}
      sparkline={value.sparkline}
      colorMode={options.colorMode}
      graphMode={options.graphMode}
      textMode={options.textMode ?? "auto"}
      justifyMode={options.justifyMode ?? "auto"}
      text={options.text}
      alignmentFactors={alignmentFactors}
      theme={theme}
      width={w}
      height={h}
    />
  );
  return (
    <VizRepeater
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={one}
      width={width}
      height={height}
      source={frames}
      itemSpacing={3}
      renderCounter={1}
      autoGrid
      orientation={options.orientation ?? "auto"}
    />
  );
}
