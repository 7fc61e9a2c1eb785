import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { jobCard, solverCard } from "../../../web/s4s/cards.mjs";
import { translator } from "../../../web/s4s/texts.mjs";
import { byClass, byKey, installDom } from "./fake_dom.mjs";
import { job, solver, table } from "./samples.mjs";

const english = JSON.parse(readFileSync(new URL("../../../locales/en/main.json", import.meta.url)));
const t = translator({ en: english }, "en");
const nothing = () => {};
const use = (more = {}) => ({
  t, url: (path) => `/api${path}`, add: nothing, choose: nothing, toggle: nothing, cancel: nothing, dismiss: nothing,
  cancelling: new Set(), ...more,
});
const shown = (more = {}) => ({ nfe: 5, table: null, open: true, ...more });

test.beforeEach(() => installDom());

test("a solver's card names it, its model, steps and gain or loss; a closed one draws no table", () => {
  const text = solverCard(solver(), shown({ table: table() }), use()).textContent;
  for (const part of ["demo solver", "demo · CFG 2 · 32 × 32", "4–6 steps", "−25 % error", "Error0.0674 · 75 %",
    "Median error0.05 · 125 %", "Look (frequency bands)0.02 · 50 %", "unipc-bh2 2, ays, 0.0901"])
    assert.ok(text.includes(part), `${part} in ${text}`);
  const measures = { 5: [{ name: "rmse", ours: 0.2, classical: 0.1, ratio: 2 }, { name: "lpips", ours: 0.3, classical: null, ratio: null }] };
  const worse = solverCard(solver({ measures }), shown(), use());
  assert.ok(worse.textContent.includes("+100 % error") && worse.textContent.includes("Look (LPIPS)0.3%"));
  assert.equal(byClass(worse, "s4s-worse").length, 1);
  const closed = solverCard(solver(), shown({ open: false, table: table() }), use());
  assert.equal(byClass(closed, "s4s-plot").length, 0);
});

test("where image-to-image was trained is shown for the chosen step count", () => {
  const text = (nfe) => solverCard(solver(), shown({ nfe }), use()).textContent;
  assert.ok(text(5).includes("Image-to-image: strength 0.5 · 80 %, noise level 1.16"));
  assert.ok(text(6).includes("Image-to-image: strength 0.5") && !text(6).includes("80 %"));
  assert.ok(!text(4).includes("Image-to-image"));
});

test("the guidance of each call is drawn and written, where the table sets it", () => {
  const card = (guidance) => solverCard(solver(), shown({ table: table({ guidance }) }), use());
  assert.equal(byClass(card(null), "s4s-guidance").length, 0);
  assert.ok(!card(null).textContent.includes("guidance"));
  assert.equal(byClass(card([0.9, 0.84, 1.2]), "s4s-guidance").length, 1);
  assert.ok(card([0.9, 0.84, 1.2]).textContent.includes("guidance × 0.90, 0.84, 1.20"));
});

test("clicks reach their actions", () => {
  const calls = [];
  const note = (name) => (...given) => calls.push([name, ...given.map((one) => one.file ?? one)]);
  const card = solverCard(solver(), shown(), use({ add: note("add"), choose: note("choose"), toggle: note("toggle") }));
  for (const key of ["add/demo.safetensors", "6/demo.safetensors", "open/demo.safetensors"]) byKey(card, key).click();
  assert.deepEqual(calls, [["add", "demo.safetensors", 5], ["choose", "demo.safetensors", 6], ["toggle", "demo.safetensors"]]);
});

test("a hostile file is shown as text, and its thumbnail comes from the route", () => {
  const evil = '"><img src=x onerror=alert(1)>';
  const card = solverCard(solver({
    file: `${evil}.safetensors`, name: evil, model: { name: evil }, thumbnail: "javascript:alert(1)",
    scores: { 5: { rmse: 1, classical: 2, classical_name: evil } },
  }), shown(), use());
  const images = card.all().filter((node) => node.tag === "img");
  assert.equal(images.length, 1);
  assert.match(images[0].attributes.src, /^\/api\/s4s\/thumbnail\?file=%22%3E%3Cimg/);
  assert.ok(card.all().every((node) => !Object.keys(node.attributes).some((name) => name.startsWith("on"))));
  assert.ok(card.textContent.includes(evil));
});

test("sparse metadata is enough for a card", () => {
  const bare = { file: "x.safetensors", error: null, thumbnail: null, name: null, model: {}, space: "flow", nfes: [5],
    cfg: null, resolution: null, scores: {} };
  const text = solverCard(bare, shown(), use()).textContent;
  assert.ok(text.includes("x.safetensors") && text.includes("flow") && text.includes("no score"));
});

test("a broken file shows its error and no buttons", () => {
  const card = solverCard({ file: "bad.safetensors", error: "it is too short" }, shown(), use());
  assert.ok(card.textContent.includes("bad.safetensors") && card.textContent.includes("it is too short"));
  assert.ok(card.all().every((node) => node.tag !== "button"));
});

test("a running job shows progress, time left and cancel", () => {
  const cancelled = [];
  const card = jobCard(job(), use({ cancel: ({ id }) => cancelled.push(id) }));
  for (const part of ["my solver", "demo · 5 steps", "42 %", "2 min left", "iteration 3", "At most 9,000 model calls"])
    assert.ok(card.textContent.includes(part), part);
  byKey(card, "cancel/a1").click();
  assert.deepEqual(cancelled, ["a1"]);
  const asked = jobCard(job(), use({ cancelling: new Set(["a1"]) }));
  assert.ok("disabled" in byKey(asked, "cancel/a1").attributes);
});

test("an ended job has no progress, and a preview is shown only if it is a bitmap", () => {
  const done = jobCard(job({ status: "done", progress: 1, result: "my.safetensors" }), use());
  assert.equal(byClass(done, "s4s-progress").length, 0);
  assert.ok(!done.textContent.includes("At most"));
  assert.ok(done.textContent.includes("Saved as my.safetensors"));
  assert.ok(jobCard(job({ status: "failed", error: "out of memory" }), use()).textContent.includes("out of memory"));
  const images = (preview) => jobCard(job({ preview }), use()).all().filter((node) => node.tag === "img").length;
  assert.deepEqual(["data:image/png;base64,AAAA", "https://example.org/track.png"].map(images), [1, 0]);
});
