// Draws the sidebar for the solvers in a JSON file: node hostile.mjs FILE. Run by test_web.py with
// what the routes return for hostile and malformed files.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { narrow } from "../../../web/s4s/steps.mjs";
import { sidebar } from "../../../web/s4s/sidebar.mjs";
import { byClass, installDom } from "./fake_dom.mjs";
import { table } from "./samples.mjs";

const TALLEST = 1500; // characters of a card
const solvers = JSON.parse(readFileSync(process.argv[2]));
const settled = () => new Promise((resolve) => setImmediate(resolve));
const complaints = [];

for (const solver of solvers) {
  const place = installDom();
  const server = {
    solvers: async () => ({ solvers: [solver], folder: "models/s4s_solvers" }),
    table: async () => table(),
    jobs: async () => [],
  };
  const tab = sidebar(server, {
    t: (key, values) => `${key} ${Object.values(values ?? {}).join(" ")}`, url: (path) => path, add() {},
    listed: (found) => narrow([], found, false), openPanel() {}, complain: (text) => complaints.push(text),
  });
  tab.render(place);
  await settled();
  await settled();
  const [card, ...others] = byClass(place, "s4s-card");
  assert.ok(card && others.length === 0, solver.file);
  assert.ok(card.textContent.length < TALLEST, solver.file);
  assert.ok(!/[\u0000-\u001f\u202e\u200b]/.test(card.textContent), solver.file);
  for (const node of place.all()) {
    assert.ok(!Object.keys(node.attributes).some((name) => name.startsWith("on")), solver.file);
    assert.ok(node.tag !== "script" && (node.tag !== "img" || node.attributes.src.startsWith("/s4s/thumbnail?")));
  }
  assert.equal(Boolean(solver.error), byClass(place, "s4s-broken").length === 1, solver.file);
  tab.destroy();
}
assert.deepEqual(complaints, []);
