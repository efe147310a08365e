import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Grafana's packages expect names of Node and of webpack; Chromium has neither.
export default defineConfig({
  base: "./",
  plugins: [react()],
  define: { "process.env.NODE_ENV": '"production"', "process.env": "{}", global: "globalThis" },
  build: { target: "esnext", chunkSizeWarningLimit: 20000 },
});
