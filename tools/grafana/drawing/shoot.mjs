// Serve the built page, the dashboards and Prometheus under one address, and take one picture of each dashboard.
// node shoot.mjs '{"page": DIR, "dashboards": DIR, "prometheus": URL, "chromium": FILE, "shots": [{"board", "out",
// "from", "to", "window", "theme", "width"}]}'; prints what was drawn as JSON, fails on any error inside the page.
import { readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

import { chromium } from "playwright-core";
import UPNG from "upng-js";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--font-render-hinting=none",
];
const COLOURS = 128;
const PATIENCE_MS = 120000;
const SETTLED_MS = 1000;

const asked = JSON.parse(process.argv[2]);

async function answer(request, response) {
  const url = new URL(request.url, "http://localhost");
  try {
    if (url.pathname.startsWith("/prometheus/")) {
      const told = await fetch(asked.prometheus + url.pathname.slice("/prometheus".length) + url.search);
      response.writeHead(told.status, { "Content-Type": "application/json" });
      response.end(await told.text());
      return;
    }
    if (url.pathname.startsWith("/public/")) {
      response.writeHead(200, { "Content-Type": "image/svg+xml" }); // Icons are part of Grafana's server: left blank.
      response.end('<svg xmlns="http://www.w3.org/2000/svg"/>');
      return;
    }
    const [folder, path] = url.pathname.startsWith("/dashboards/")
      ? [asked.dashboards, url.pathname.slice("/dashboards".length)]
      : [asked.page, url.pathname === "/" ? "/index.html" : url.pathname];
    const body = await readFile(join(folder, normalize(path)));
    response.writeHead(200, { "Content-Type": TYPES[extname(path)] ?? "application/octet-stream" });
    response.end(body);
  } catch (error) {
    response.writeHead(error.code === "ENOENT" ? 404 : 502);
    response.end(String(error));
  }
}

/** The same picture with a palette, a third of the size. */
function small(png) {
  const picture = UPNG.decode(png);
  return Buffer.from(UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, COLOURS));
}

const server = createServer(answer);
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const browser = await chromium.launch({ executablePath: asked.chromium, args: FLAGS });
let failed = false;
const done = [];
try {
  for (const shot of asked.shots) {
    const page = await browser.newPage({ viewport: { width: shot.width, height: 1000 } });
    page.on("pageerror", (error) => {
      console.error(`${shot.board}: ${error.stack}`);
      failed = true;
    });
    page.on("console", (line) => line.type() === "error" && console.error(`${shot.board}: ${line.text()}`));
    page.on("response", (told) => told.ok() || console.error(`${shot.board}: ${told.status()} ${told.url()}`));
    const query = new URLSearchParams({
      board: shot.board, from: shot.from, to: shot.to, window: shot.window, theme: shot.theme,
    });
    await page.goto(`http://127.0.0.1:${server.address().port}/?${query}`);
    await page.waitForFunction(
      () =>
        document.title === "ready" &&
        document.querySelectorAll(".uplot canvas").length >= Number(document.body.dataset.charts),
      null,
      { timeout: PATIENCE_MS },
    );
    await page.waitForTimeout(SETTLED_MS); // a chart that has been made is drawn in the next frame
    const seen = await page.evaluate(() => ({
      panels: document.querySelectorAll('[data-testid^="data-testid Panel header"], section').length,
      canvases: document.querySelectorAll("canvas").length,
    }));
    await writeFile(shot.out, small(await page.screenshot({ fullPage: true })));
    done.push({ board: shot.board, out: shot.out, ...seen });
    await page.close();
  }
} finally {
  await browser.close();
  server.close();
}
console.log(JSON.stringify(done));
process.exit(failed ? 1 : 0);
