// Drives one JavaScript library through the cases: node drive.mjs LIBRARY '{"CASE": "http://127.0.0.1:PORT", …}'
// Prints one JSON document: for each case what a user of the library sees, with the library's own defaults.
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const PLAIN = new Set(["plain", "refused"]);
const NAME = "get_weather";
const ABOUT = "The weather of a city";
const SCHEMA = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const KEY = "sk-client-tests";
const said = (name) => [{ role: "user", content: `case ${name}` }];
const nothing = () => ({ text: "", finish: null, tool: "", arguments: "" });

async function openaiJs(name, url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY });
  const asked = { model: `openai_js.${name}`, messages: said(name) };
  if (PLAIN.has(name)) {
    const { choices } = await client.chat.completions.create(asked);
    return { text: choices[0].message.content, finish: choices[0].finish_reason };
  }
  if (name === "tools") {
    asked.tools = [{ type: "function", function: { name: NAME, description: ABOUT, parameters: SCHEMA } }];
  }
  const shown = nothing();
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    for (const choice of chunk.choices) {
      shown.text += choice.delta.content ?? "";
      shown.finish = choice.finish_reason ?? shown.finish;
      for (const call of choice.delta.tool_calls ?? []) {
        shown.tool += call.function?.name ?? "";
        shown.arguments += call.function?.arguments ?? "";
      }
    }
  }
  return shown;
}

async function anthropicJs(name, url) {
  const client = new Anthropic({ baseURL: url, apiKey: KEY });
  const asked = { model: `anthropic_js.${name}`, messages: said(name), max_tokens: 64 };
  if (PLAIN.has(name)) {
    const answer = await client.messages.create(asked);
    return { text: answer.content[0].text, finish: answer.stop_reason };
  }
  if (name === "tools") {
    asked.tools = [{ name: NAME, description: ABOUT, input_schema: SCHEMA }];
  }
  const shown = nothing();
  for await (const event of await client.messages.create({ ...asked, stream: true })) {
    if (event.type === "content_block_start" && event.content_block.type === "tool_use") {
      shown.tool = event.content_block.name;
    } else if (event.type === "content_block_delta") {
      shown.text += event.delta.text ?? "";
      shown.arguments += event.delta.partial_json ?? "";
    } else if (event.type === "message_delta") {
      shown.finish = event.delta.stop_reason;
    }
  }
  return shown;
}

async function aiSdk(name, url) {
  const provider = createOpenAICompatible({ name: "lanewise", baseURL: `${url}/v1`, apiKey: KEY });
  const asked = { model: provider(`ai_sdk.${name}`), messages: said(name) };
  if (PLAIN.has(name)) {
    const answer = await generateText(asked);
    return { text: answer.text, finish: answer.finishReason };
  }
  if (name === "tools") {
    asked.tools = { [NAME]: tool({ description: ABOUT, inputSchema: jsonSchema(SCHEMA) }) };
  }
  const shown = nothing();
  let failed = null;
  const stream = streamText({ ...asked, onError: ({ error }) => { failed = error; } });
  for await (const part of stream.fullStream) {
    if (part.type === "text-delta") shown.text += part.text;
    if (part.type === "tool-call") {
      shown.tool = part.toolName;
      shown.arguments = JSON.stringify(part.input);
    }
    if (part.type === "finish") shown.finish = part.finishReason;
  }
  if (failed !== null) throw failed;
  return shown;
}

const LIBRARIES = {
  openai_js: [openaiJs, "openai"],
  anthropic_js: [anthropicJs, "@anthropic-ai/sdk"],
  ai_sdk: [aiSdk, "ai"],
};

async function show(ask, name, url) {
  const began = performance.now();
  let shown;
  try {
    shown = await ask(name, url);
  } catch (error) {
    const last = error.lastError ?? error;
    shown = {
      error: error.constructor.name === "Error" ? error.name : error.constructor.name,
      status: error.status ?? last.statusCode ?? null,
      message: String(error.message ?? error).slice(0, 200),
    };
  }
  return { ...shown, seconds: Math.round((performance.now() - began) / 10) / 100 };
}

const [library, given] = process.argv.slice(2);
const [ask, distribution] = LIBRARIES[library];
const cases = Object.entries(JSON.parse(given));
const told = await Promise.all(cases.map(async ([name, url]) => [name, await show(ask, name, url)]));
const { version } = JSON.parse(readFileSync(`node_modules/${distribution}/package.json`, "utf8"));
console.log(JSON.stringify({ version, cases: Object.fromEntries(told) }));
