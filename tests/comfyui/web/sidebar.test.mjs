import assert from "node:assert/strict";
import { test } from "node:test";

import { mergedJobs, shownJobs, sidebar, withJob } from "../../../web/s4s/sidebar.mjs";
import { byClass, byKey, installDom } from "./fake_dom.mjs";
import { job, solver, table } from "./samples.mjs";

function fakeClock() {
  const clock = {
    now: 0,
    waiting: new Map(),
    pass(milliseconds) {
      this.now += milliseconds;
      for (const [id, [when, act]] of [...this.waiting])
        if (when <= this.now && this.waiting.delete(id)) act();
    },
  };
  let last = 0;
  globalThis.setTimeout = (act, after = 0) => { clock.waiting.set(++last, [clock.now + after, act]); return last; };
  globalThis.clearTimeout = (id) => clock.waiting.delete(id);
  return clock;
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A test of an open sidebar over a server with these answers; its clock moves only by `clock.pass`. */
const shows = (name, answers, body) => test(name, async () => {
  const clock = fakeClock();
  const place = installDom();
  const asked = [];
  const state = { solvers: [solver()], jobs: [], ...answers };
  const server = {
    solvers: async () => { asked.push("solvers"); return { solvers: state.solvers, folder: "models/s4s_solvers" }; },
    table: async (file, nfe) => { asked.push(`table ${file} ${nfe}`); return table(); },
    jobs: async () => { asked.push("jobs"); return state.jobs; },
    cancel: async (id) => { asked.push(`cancel ${id}`); state.jobs = []; },
    ...answers.server,
  };
  const complaints = [];
  const tab = sidebar(server, {
    t: (key, values) => `${key} ${Object.values(values ?? {}).join(" ")}`, url: (path) => path, add() {}, listed() {},
    openPanel: async () => asked.push("panel"), complain: (text) => complaints.push(text),
  });
  tab.render(place);
  await settled();
  const click = async (...keys) => { for (const key of keys) byKey(place, key).click(); await settled(); };
  const times = (what) => asked.filter((one) => one === what).length;
  await body({ tab, place, asked, complaints, state, clock, click, times });
  tab.destroy();
});

shows("solvers are read once, however often ComfyUI renders; the only one is open", {}, async (s) => {
  s.tab.render(s.place);
  await settled();
  assert.equal(s.times("solvers"), 1);
  assert.deepEqual(["s4s-card", "s4s-plot"].map((name) => byClass(s.place, name).length), [1, 1]);
  assert.ok(s.asked.includes("table demo.safetensors 5"));
});

shows("an empty folder is named", { solvers: [] }, ({ place }) => {
  assert.match(place.textContent, /none models\/s4s_solvers/);
});

let broken = true;
const failing = async () => {
  if (broken) throw new Error("the folder cannot be read");
  return { solvers: [solver()], folder: "" };
};
shows("a failing server's message is shown, and a refresh recovers", { server: { solvers: failing } }, async (s) => {
  assert.match(s.place.textContent, /the folder cannot be read/);
  broken = false;
  await s.click("refresh");
  assert.equal(byClass(s.place, "s4s-card").length, 1);
});

shows("jobs are asked for again while the tab is open, and not after", { jobs: [job()] }, async (s) => {
  assert.equal(s.times("jobs"), 1);
  s.clock.pass(2_000);
  await settled();
  assert.equal(s.times("jobs"), 2);
  s.tab.destroy();
  s.clock.pass(60_000);
  await settled();
  assert.equal(s.times("jobs"), 2);
});

shows("two requests at once leave one timer running", {}, async (s) => {
  await s.click("refresh", "refresh");
  const before = s.times("jobs");
  s.clock.pass(15_000);
  await settled();
  assert.equal(s.times("jobs"), before + 1);
});

shows("cancel asks the server and removes the card", { jobs: [job()] }, async (s) => {
  await s.click("cancel/a1");
  assert.ok(s.asked.includes("cancel a1"));
  assert.equal(byKey(s.place, "cancel/a1"), undefined);
});

const refuse = async () => { throw new Error("no such job"); };
shows("a refused cancel shows the error and can be tried again", { jobs: [job()], server: { cancel: refuse } }, async (s) => {
  await s.click("cancel/a1");
  assert.deepEqual(s.complaints, ["no such job"]);
  assert.ok(!("disabled" in byKey(s.place, "cancel/a1").attributes));
});

shows("training in the graph is shown from events, and its end reloads the files", {}, async ({ tab, place, times }) => {
  tab.training(job({ id: "graph", progress: 0.5, preview: "data:image/png;base64,AAAA" }));
  assert.equal(byClass(place, "s4s-preview").length, 1);
  tab.training(job({ id: "graph", progress: 0.6 }));
  assert.match(place.textContent, /60 %/);
  tab.training(job({ id: "graph", status: "done", progress: 1 }));
  await settled();
  assert.equal(times("solvers"), 2);
});

shows("events received while the tab is closed are shown when it opens", {}, ({ tab, place }) => {
  tab.destroy();
  tab.training(job({ id: "graph" }));
  assert.equal(byKey(place, "cancel/graph"), undefined);
  tab.render(place);
  assert.ok(byKey(place, "cancel/graph"));
});

shows("a redraw keeps the focus", {}, ({ tab, place }) => {
  byKey(place, "add/demo.safetensors").focus();
  tab.training(job());
  assert.equal(document.activeElement, byKey(place, "add/demo.safetensors"));
});

shows("nothing is redrawn while a button is pressed", { jobs: [job()] }, ({ tab, place, clock }) => {
  const pressed = byKey(place, "cancel/a1");
  for (const press of place.listeners.pointerdown) press();
  tab.training(job({ progress: 0.9 }));
  assert.equal(byKey(place, "cancel/a1"), pressed);
  for (const release of window.listeners.pointerup) release();
  assert.equal(byKey(place, "cancel/a1"), pressed); // until the click has been handled
  clock.pass(0);
  assert.notEqual(byKey(place, "cancel/a1"), pressed);
  assert.match(place.textContent, /90 %/);
  tab.destroy();
  assert.deepEqual(window.listeners, { pointerup: [], pointercancel: [] });
});

const named = ["a", "b", "c", "d", "e"].map((name) => solver({ file: `${name}.safetensors`, name }));
shows("searching filters, from five files on", { solvers: named }, ({ place }) => {
  for (const listener of byKey(place, "search").listeners.input) listener({ target: { value: "c.safe" } });
  assert.equal(byClass(place, "s4s-card").length, 1);
});

const many = Array.from({ length: 1000 }, (_, i) => solver({ file: `${i}.safetensors` }));
shows("of a thousand files a hundred are drawn and the rest are counted", { solvers: many }, ({ place }) => {
  assert.equal(byClass(place, "s4s-card").length, 100);
  assert.match(place.textContent, /more 900/);
});

shows("the trainer button starts one panel at a time", {}, async ({ place, click, times }) => {
  await click("trainer", "trainer");
  assert.equal(times("panel"), 1);
  assert.ok(!("disabled" in byKey(place, "trainer").attributes));
});

shows("a chosen step count shows its table, and is forgotten if the file loses it", {}, async ({ asked, state, click }) => {
  await click("6/demo.safetensors");
  assert.ok(asked.includes("table demo.safetensors 6"));
  state.solvers = [solver({ nfes: [3, 4] })];
  await click("refresh");
  assert.ok(asked.includes("table demo.safetensors 4"));
});

test("running jobs come first; ended ones are few, and cancelled or dismissed ones hidden", () => {
  const ended = ["1", "2", "3", "4"].map((id) => job({ id, status: "done" }));
  const jobs = [job({ id: "x", status: "cancelled" }), ...ended, job({ id: "run" }), job({ id: "wait", status: "queued" })];
  assert.deepEqual(shownJobs(jobs, new Set(["2"])).map(({ id }) => id), ["run", "wait", "1", "3", "4"]);
});

test("a view replaces the job of its id; a listing keeps previews and how a training in the graph ended", () => {
  assert.deepEqual(withJob([job(), job({ id: "b" })], { id: "b", progress: 1 }).map((one) => one.progress), [0.42, 1]);
  assert.equal(withJob([], job()).length, 1);
  const known = [job({ preview: "p" }), job({ id: "graph", node: "7", status: "done" }), job({ id: "gone", status: "done" })];
  const merged = mergedJobs(known, [job({ progress: 0.9 })]);
  assert.deepEqual(merged.map(({ id, progress, preview }) => [id, progress, preview]), [["graph", 0.42, undefined], ["a1", 0.9, "p"]]);
  assert.equal(mergedJobs([job({ id: "graph", node: "7" })], []).length, 0);
});
