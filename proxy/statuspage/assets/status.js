"use strict";
// Looks again every few seconds: tables come from the same page, charts from history.json. All words come from the page.
(() => {
  const REPLACED = ["now", "tables"];
  const LEAST_S = 300; // a process that is younger than this draws on the right side only
  const WHOLE = [1, 2, 5].flatMap((first) => [0, 1, 2, 3, 4, 5, 6].map((power) => first * 10 ** power)).sort((a, b) => a - b);
  const refreshMs = Number(document.documentElement.dataset.refreshMs) || 5000;
  const stale = document.getElementById("stale");
  const charts = document.getElementById("charts");
  const drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (seconds, length) => new Date(seconds * 1000).toISOString().slice(11, 11 + length);

  function shown(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "%") return `${Math.round(100 * value)} %`;
    if (unit === "s") return value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(1)} s`;
    const digits = Number.isInteger(value) ? 0 : value < 10 ? 2 : 1;
    return value.toFixed(digits) + (unit === "/s" ? "/s" : "");
  }

  function options(figure, keptS) {
    const unit = figure.dataset.unit;
    const grid = { stroke: color("--line"), width: 1 };
    const axis = { stroke: color("--soft"), grid, ticks: grid, font: "11px system-ui, sans-serif" };
    const lines = figure.dataset.labels.split("|").map((label, place) => ({
      label,
      stroke: color(`--c${place}`),
      width: 1.6,
      dash: figure.dataset.series.split(",")[place] === "allowed" ? [5, 4] : undefined,
      points: { show: false },
      value: (_, value) => shown(value, unit),
    }));
    return {
      width: figure.clientWidth - 24,
      height: 165,
      cursor: { sync: { key: "lanewise" }, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: (_, first, last) => [Math.min(Math.max(last - keptS, first), last - LEAST_S), last] },
        y: { range: (_, __, most) => [0, unit === "%" ? 1 : Math.max(unit === "s" ? 0.1 : 1, (most || 0) * 1.12)] },
      },
      axes: [
        { ...axis, size: 26, values: (_, moments) => moments.map((moment) => clock(moment, 5)) },
        { ...axis, size: 54, incrs: unit === "" ? WHOLE : undefined, values: (_, values) => values.map((value) => shown(value, unit)) },
      ],
      hooks: { setCursor: [(chart) => chart.cursor.idx == null && atTheEnd(chart)] },
      series: [{ label: charts.dataset.time, value: (_, moment) => (moment === null ? "–" : clock(moment, 8)) }, ...lines],
    };
  }

  // Away from the cursor the legend tells the newest values.
  function atTheEnd(chart) {
    if (chart.data[0].length) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
  }

  function draw(history) {
    charts.hidden = false;
    charts.querySelectorAll("figure").forEach((figure, place) => {
      const data = [history.at, ...figure.dataset.series.split(",").map((name) => history.series[name])];
      if (drawn[place]) drawn[place].setData(data);
      else drawn[place] = new uPlot(options(figure, history.kept_s), data, figure);
      if (drawn[place].cursor.idx == null) atTheEnd(drawn[place]);
    });
    charts.dataset.samples = String(history.at.length);
  }

  function redraw() {
    drawn.splice(0).forEach((chart) => chart.destroy());
    return look();
  }

  async function fetched(address) {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
    return answer;
  }

  async function look() {
    try {
      const [page, history] = await Promise.all([
        fetched(location.pathname + location.search).then((answer) => answer.text()),
        fetched("history.json").then((answer) => answer.json()),
      ]);
      const selected = !document.getSelection().isCollapsed; // somebody copies: leave the tables alone
      const next = new DOMParser().parseFromString(page, "text/html");
      for (const id of selected ? [] : REPLACED) {
        document.getElementById(id).replaceChildren(...next.getElementById(id).childNodes);
      }
      draw(history);
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
  }

  async function keepLooking() {
    if (!document.hidden) await look();
    setTimeout(keepLooking, refreshMs);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(() => {
    charts.querySelectorAll("figure").forEach((figure, place) => {
      if (drawn[place]) drawn[place].setSize({ width: figure.clientWidth - 24, height: 165 });
    });
  }).observe(charts);
  keepLooking();
})();
