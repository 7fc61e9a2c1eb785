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

/** A sidebar over a server whose answers can be changed; its clock moves only by `clock.pass`. */
function open(answers = {}) {
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
  return { tab, place, asked, complaints, state, clock };
}

test("opening reads solvers and jobs once, however often ComfyUI renders", async () => {
  const { tab, place, asked } = open();
  tab.render(place);
  await settled();
  assert.deepEqual(asked.filter((what) => what === "solvers"), ["solvers"]);
  assert.equal(byClass(place, "s4s-card").length, 1);
  tab.destroy();
});

test("the only solver is open, with its table", async () => {
  const { place, asked, tab } = open();
  await settled();
  assert.ok(asked.includes("table demo.safetensors 5"));
  assert.equal(byClass(place, "s4s-plot").length, 1);
  byKey(place, "6/demo.safetensors").click();
  await settled();
  assert.ok(asked.includes("table demo.safetensors 6"));
  tab.destroy();
});

test("an empty folder is named", async () => {
  const { place, tab } = open({ solvers: [] });
  await settled();
  assert.match(place.textContent, /none models\/s4s_solvers/);
  tab.destroy();
});

test("a failing server's message is shown, and a refresh recovers", async () => {
  let broken = true;
  const solvers = async () => {
    if (broken) throw new Error("the folder cannot be read");
    return { solvers: [solver()], folder: "" };
  };
  const { place, tab } = open({ server: { solvers } });
  await settled();
  assert.match(place.textContent, /the folder cannot be read/);
  broken = false;
  byKey(place, "refresh").click();
  await settled();
  assert.equal(byClass(place, "s4s-card").length, 1);
  tab.destroy();
});

test("jobs are asked for again while the tab is open, and not after", async () => {
  const { tab, asked, clock } = open({ jobs: [job()] });
  const times = () => asked.filter((what) => what === "jobs").length;
  await settled();
  assert.equal(times(), 1);
  clock.pass(2_000);
  await settled();
  assert.equal(times(), 2);
  tab.destroy();
  clock.pass(60_000);
  await settled();
  assert.equal(times(), 2);
});

test("cancel asks the server and removes the card", async () => {
  const { place, asked, tab } = open({ jobs: [job()] });
  await settled();
  byKey(place, "cancel/a1").click();
  await settled();
  assert.ok(asked.includes("cancel a1"));
  assert.equal(byKey(place, "cancel/a1"), undefined);
  tab.destroy();
});

test("a refused cancel shows the error and can be tried again", async () => {
  const cancel = async () => { throw new Error("no such job"); };
  const { place, complaints, tab } = open({ jobs: [job()], server: { cancel } });
  await settled();
  byKey(place, "cancel/a1").click();
  await settled();
  assert.deepEqual(complaints, ["no such job"]);
  assert.ok(!("disabled" in byKey(place, "cancel/a1").attributes));
  tab.destroy();
});

test("training in the graph is shown from events, and its end reloads the files", async () => {
  const { tab, place, asked } = open();
  await settled();
  tab.training(job({ id: "graph", progress: 0.5, preview: "data:image/png;base64,AAAA" }));
  assert.equal(byClass(place, "s4s-preview").length, 1);
  tab.training(job({ id: "graph", progress: 0.6 }));
  assert.match(place.textContent, /60 %/);
  tab.training(job({ id: "graph", status: "done", progress: 1 }));
  await settled();
  assert.equal(asked.filter((what) => what === "solvers").length, 2);
  tab.destroy();
});

test("events received while the tab is closed are shown when it opens", async () => {
  const { tab, place } = open();
  tab.destroy();
  tab.training(job({ id: "graph" }));
  assert.equal(byKey(place, "cancel/graph"), undefined);
  tab.render(place);
  assert.ok(byKey(place, "cancel/graph"));
  tab.destroy();
});

test("a redraw keeps the focus", async () => {
  const { tab, place } = open();
  await settled();
  byKey(place, "add/demo.safetensors").focus();
  tab.training(job());
  assert.equal(document.activeElement, byKey(place, "add/demo.safetensors"));
  tab.destroy();
});

test("nothing is redrawn while a button is pressed", async () => {
  const { tab, place, clock } = open({ jobs: [job()] });
  await settled();
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

test("searching filters, from five files on", async () => {
  const many = ["a", "b", "c", "d", "e"].map((name) => solver({ file: `${name}.safetensors`, name }));
  const { tab, place } = open({ solvers: many });
  await settled();
  const field = byKey(place, "search");
  field.value = "c";
  for (const listener of field.listeners.input) listener({ target: { value: "c.safe" } });
  assert.equal(byClass(place, "s4s-card").length, 1);
  tab.destroy();
});

test("the trainer button starts one panel at a time", async () => {
  const { tab, place, asked } = open();
  byKey(place, "trainer").click();
  byKey(place, "trainer").click();
  await settled();
  assert.deepEqual(asked.filter((what) => what === "panel"), ["panel"]);
  assert.ok(!("disabled" in byKey(place, "trainer").attributes));
  tab.destroy();
});

test("running jobs come first; ended ones are few, and cancelled or dismissed ones hidden", () => {
  const ended = ["1", "2", "3", "4"].map((id) => job({ id, status: "done" }));
  const jobs = [job({ id: "x", status: "cancelled" }), ...ended, job({ id: "run" }), job({ id: "wait", status: "queued" })];
  assert.deepEqual(shownJobs(jobs, new Set(["2"])).map(({ id }) => id), ["run", "wait", "1", "3", "4"]);
});

test("a view replaces the job of its id", () => {
  assert.deepEqual(withJob([job(), job({ id: "b" })], { id: "b", progress: 1 }).map((one) => one.progress), [0.42, 1]);
  assert.equal(withJob([], job()).length, 1);
});

test("a listing keeps previews and how a training in the graph ended", () => {
  const known = [job({ preview: "p" }), job({ id: "graph", node: "7", status: "done" }), job({ id: "gone", status: "done" })];
  const merged = mergedJobs(known, [job({ progress: 0.9 })]);
  assert.deepEqual(merged.map(({ id, progress, preview }) => [id, progress, preview]), [["graph", 0.42, undefined], ["a1", 0.9, "p"]]);
  assert.equal(mergedJobs([job({ id: "graph", node: "7" })], []).length, 0);
});

test("of a thousand files a hundred are drawn and the rest are counted", async () => {
  const many = Array.from({ length: 1000 }, (_, i) => solver({ file: `${i}.safetensors` }));
  const { tab, place } = open({ solvers: many });
  await settled();
  assert.equal(byClass(place, "s4s-card").length, 100);
  assert.match(place.textContent, /more 900/);
  tab.destroy();
});

test("a chosen step count that a file no longer has is forgotten", async () => {
  const { tab, place, asked, state } = open();
  await settled();
  byKey(place, "6/demo.safetensors").click();
  await settled();
  state.solvers = [solver({ nfes: [3, 4] })];
  byKey(place, "refresh").click();
  await settled();
  assert.ok(asked.includes("table demo.safetensors 4"));
  tab.destroy();
});

test("two requests at once leave one timer running", async () => {
  const { tab, place, asked, clock } = open();
  await settled();
  byKey(place, "refresh").click();
  byKey(place, "refresh").click();
  await settled();
  const before = asked.filter((what) => what === "jobs").length;
  clock.pass(15_000);
  await settled();
  assert.equal(asked.filter((what) => what === "jobs").length, before + 1);
  tab.destroy();
});
