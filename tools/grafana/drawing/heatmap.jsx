// Grafana's heat map is part of its server and not on npm, so this one is ours: a column for each time, a row for each
// bucket, darker where more fell into it. Buckets are cumulative; the one below is taken off.
import React from "react";

const AXIS_PX = 64;
const TIME_PX = 22;

export function Heatmap({ frames, screen, theme, width, height }) {
  const rows = frames
    .map((frame) => ({ bound: Number(frame.fields[1].labels.le.replace("+Inf", "Infinity")), frame }))
    .sort((one, other) => one.bound - other.bound)
    .map(({ bound, frame }) => ({
      bound,
      at: new Map(frame.fields[0].values.map((time, index) => [time, frame.fields[1].values[index] ?? 0])),
    }));
  const times = [...rows[0].at.keys()];
  const counts = rows.map((row, index) =>
    times.map((time) => Math.max(0, (row.at.get(time) ?? 0) - (index ? (rows[index - 1].at.get(time) ?? 0) : 0))),
  );
  const most = Math.max(...counts.flat(), Number.EPSILON);
  const cell = { w: (width - AXIS_PX) / times.length, h: (height - TIME_PX) / rows.length };
  const clock = (time) => new Date(time).toISOString().slice(11, 16);
  const marks = [0.1, 0.5, 0.9].map((share) => Math.floor(share * times.length));
  const text = { fill: theme.colors.text.secondary, fontSize: 11 };
  return (
    <svg width={width} height={height} style={{ display: "block" }}>
      {counts.map((row, up) =>
        row.map((count, at) => (
          <rect
            key={`${up} ${at}`}
            x={AXIS_PX + at * cell.w}
            y={height - TIME_PX - (up + 1) * cell.h}
            width={cell.w + 0.5}
            height={cell.h - 1}
            fill={theme.visualization.getColorByName("dark-orange")}
            opacity={Math.sqrt(count / most)}
          />
        )),
      )}
      {rows.map(({ bound }, up) => (
        <text key={bound} x={AXIS_PX - 6} y={height - TIME_PX - (up + 0.3) * cell.h} textAnchor="end" {...text}>
          {Number.isFinite(bound) ? bound : "+Inf"}
        </text>
      ))}
      {marks.map((at) => (
        <text key={at} x={AXIS_PX + at * cell.w} y={height - 6} textAnchor="middle" {...text}>
          {clock(times[at])}
        </text>
      ))}
    </svg>
  );
}
