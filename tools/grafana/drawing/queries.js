// What a panel asks, with its variables filled in, and the answers as Grafana's data frames.
import { FieldType, toDataFrame } from "@grafana/data";

export class Screen {
  /** from, to and windowS in seconds. */
  constructor(board, from, to, windowS) {
    this.board = board;
    this.from = from;
    this.to = to;
    this.stepS = Math.max(5, Math.ceil((to - from) / 240));
    this.values = Object.fromEntries(board.templating.list.map((one) => [one.name, valueOf(one)]));
    this.values.__rate_interval = `${windowS}s`;
    this.values.__range = `${Math.round(to - from)}s`;
    this.values.__interval = `${this.stepS}s`;
  }

  fill = (text) => String(text).replace(/\$(\w+)/g, (whole, name) => this.values[name] ?? whole);

  /** Answers of all panels by panel id: frames, or the reason why there are none. */
  async answers() {
    const panels = this.board.panels.filter((panel) => panel.type !== "row");
    const all = await Promise.all(
      panels.map(async (panel) => {
        try {
          const parts = await Promise.all(panel.targets.map((target) => this.#ask(target)));
          return [panel.id, { frames: parts.flat() }];
        } catch (error) {
          return [panel.id, { frames: [], error: String(error) }];
        }
      }),
    );
    return new Map(all);
  }

  async #ask(target) {
    const query = new URLSearchParams({ query: this.fill(target.expr) });
    if (target.instant && !target.range) {
      query.set("time", this.to);
    } else {
      query.set("start", this.from);
      query.set("end", this.to);
      query.set("step", this.stepS);
    }
    const path = target.instant && !target.range ? "query" : "query_range";
    const told = await (await fetch(`prometheus/api/v1/${path}?${query}`)).json();
    if (told.status !== "success") {
      throw new Error(`${told.error}: ${target.expr}`);
    }
    return told.data.result.map((series) => this.#frame(target, series));
  }

  #frame(target, series) {
    const points = series.values ?? [series.value];
    const numbers = points.map(([, text]) => (Number.isFinite(Number(text)) ? Number(text) : null));
    const name = this.#legend(target, series.metric);
    const frame = toDataFrame({
      refId: target.refId,
      name,
      fields: [
        {
          name: "Time",
          type: FieldType.time,
          config: { interval: 1000 * this.stepS },
          values: points.map(([at]) => 1000 * at),
        },
        {
          name: "Value",
          type: FieldType.number,
          labels: series.metric,
          config: { displayNameFromDS: name },
          values: numbers,
        },
      ],
    });
    return frame;
  }

  #legend(target, labels) {
    if (target.legendFormat && target.legendFormat !== "__auto") {
      return this.fill(target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? "")).trim();
    }
    const told = Object.entries(labels).filter(([label]) => label !== "__name__");
    return told.map(([label, value]) => `${label}=${value}`).join(", ") || "Value";
  }
}

function valueOf(variable) {
  if (variable.type === "datasource" || variable.includeAll) {
    return variable.allValue ?? "";
  }
  return String(variable.current.value);
}
