import assert from "node:assert/strict";
import { test } from "node:test";

import { carryOut, describe, plan } from "../../../web/s4s/graph.mjs";
import { narrow, nearest, stepsOf } from "../../../web/s4s/steps.mjs";
import { solver } from "./samples.mjs";

const SLOTS = {
  S4SLoadSolver: [[], ["S4S_SOLVER"], ["solver"]],
  S4SApplySolver: [[["model", "MODEL"], ["solver", "S4S_SOLVER"]], ["MODEL"], []],
  S4SSampler: [[["solver", "S4S_SOLVER"]], ["SAMPLER", "SIGMAS", "INT"], ["steps", "denoise"]],
  S4SKSampler: [[["model", "MODEL"], ["solver", "S4S_SOLVER"]], ["LATENT"], ["steps"]],
  KSampler: [[["model", "MODEL"], ["positive", "CONDITIONING"]], ["LATENT"], ["steps", "cfg", "sampler_name", "scheduler"]],
  S4STrainSolver: [[["model", "MODEL"]], ["S4S_SOLVER", "IMAGE"], ["nfes", "effort"]],
  S4SSaveSolver: [[["solver", "S4S_SOLVER"]], ["S4S_SOLVER", "STRING"], ["filename"]],
  SamplerCustomAdvanced: [[["guider", "GUIDER"], ["sampler", "SAMPLER"], ["sigmas", "SIGMAS"]], ["LATENT"], []],
  CheckpointLoaderSimple: [[], ["MODEL", "CLIP", "VAE"], ["ckpt_name"]],
  VAEDecode: [[["samples", "LATENT"]], ["IMAGE"], []],
};

/** As much of LiteGraph as adding and wiring nodes takes. */
function fakeGraph() {
  const graph = {
    nodes: [],
    add(node) { node.id = this.nodes.push(node); },
    getNodeById(id) { return this.nodes[id - 1]; },
  };
  const createNode = (type) => {
    if (!SLOTS[type]) return null;
    const [inputs, outputs, widgets] = SLOTS[type];
    return {
      type, pos: [0, 0],
      inputs: inputs.map(([name, of]) => ({ name, type: of, link: null })),
      outputs: outputs.map((of) => ({ type: of })),
      widgets: widgets.map((name) => ({ name, value: null, options: { values: ["old"] } })),
      connect(output, target, slot) {
        assert.equal(this.outputs[output].type, target.inputs[slot].type);
        target.inputs[slot].link = { origin_id: this.id, origin_slot: output };
      },
      getInputLink(slot) { return this.inputs[slot].link; },
      getInputNode(slot) { return this.inputs[slot].link && graph.getNodeById(this.inputs[slot].link.origin_id); },
    };
  };
  const put = (type) => { const node = createNode(type); graph.add(node); return node; };
  const events = [];
  const canvas = { emitBeforeChange: () => events.push("before"), emitAfterChange: () => events.push("after") };
  return { graph, put, events, host: { graph, canvas, createNode, centre: [50, 60] } };
}

/** Add a solver with nodes of these types in the graph and the last of them selected. */
function added(...types) {
  const world = fakeGraph();
  const put = types.map(world.put);
  const selected = put.at(-1) ?? null;
  if (put.length > 1) put[0].connect(0, selected, 0);
  return { put, world, made: carryOut(plan(describe(selected), "my.safetensors", 6), selected, world.host) };
}
const widget = (node, name) => node.widgets.find((one) => one.name === name).value;
const source = (world, node, name) => {
  const { link } = node.inputs.find((slot) => slot.name === name);
  return link && world.graph.getNodeById(link.origin_id);
};

test("with nothing selected, both nodes are added in view and connected", () => {
  const { world, made: [load, apply] } = added();
  assert.deepEqual([load.type, apply.type], ["S4SLoadSolver", "S4SApplySolver"]);
  assert.equal(widget(load, "solver"), "my.safetensors");
  assert.equal(source(world, apply, "solver"), load);
  assert.deepEqual(load.pos, [50, 60]);
  assert.deepEqual(world.events, ["before", "after"]);
});

test("a KSampler gets the solver on its model, if it has one, and the right settings", () => {
  const { world, put: [checkpoint, sampler], made: [load, apply] } = added("CheckpointLoaderSimple", "KSampler");
  assert.equal(source(world, apply, "model"), checkpoint);
  assert.equal(source(world, apply, "solver"), load);
  assert.equal(source(world, sampler, "model"), apply);
  assert.deepEqual(["sampler_name", "scheduler", "steps", "cfg"].map((name) => widget(sampler, name)), ["s4s", "s4s", 6, null]);
  const bare = added("KSampler");
  assert.equal(source(bare.world, bare.put[0], "model"), bare.made[1]);
  assert.equal(source(bare.world, bare.made[1], "model"), null);
});

test("SamplerCustomAdvanced gets sampler and sigmas", () => {
  const { world, put: [advanced], made: [load, sampler] } = added("SamplerCustomAdvanced");
  assert.equal(sampler.type, "S4SSampler");
  assert.equal(source(world, sampler, "solver"), load);
  for (const name of ["sampler", "sigmas"]) assert.equal(source(world, advanced, name), sampler);
  assert.equal(widget(sampler, "steps"), 6);
});

test("other nodes get only what they take", () => {
  const own = added("S4SKSampler");
  assert.equal(own.made.length, 1);
  assert.equal(source(own.world, own.put[0], "solver"), own.made[0]);
  const model = added("CheckpointLoaderSimple");
  assert.equal(source(model.world, model.made[1], "model"), model.put[0]);
  const other = added("VAEDecode");
  assert.equal(other.made.length, 2);
  assert.equal(source(other.world, other.put[0], "samples"), null);
});

test("a selected loader takes the file, and nothing is added", () => {
  const { put: [load], made } = added("S4SLoadSolver");
  assert.deepEqual(made, []);
  assert.equal(widget(load, "solver"), "my.safetensors");
  assert.deepEqual(load.widgets[0].options.values, ["old", "my.safetensors"]);
});

test("a host without our nodes gets an error", () => {
  const host = { ...fakeGraph().host, createNode: () => null };
  assert.throws(() => carryOut(plan(null, "x", 5), null, host), /S4SLoadSolver/);
});

test("nearest prefers the smaller of two", () => {
  assert.equal(nearest([8, 4, 6], 5), 4);
  assert.equal(nearest([3, 9], 20), 9);
});

test("the list of steps follows the connected solver", () => {
  const world = fakeGraph();
  const [load, sampler, free] = ["S4SLoadSolver", "S4SKSampler", "S4SSampler"].map(world.put);
  load.widgets[0].value = "my.safetensors";
  load.connect(0, sampler, 1);
  sampler.widgets[0].value = 20;
  free.widgets[0].value = 5;
  const solvers = [solver({ file: "my.safetensors", nfes: [4, 6] }), solver({ nfes: [5] }), { file: "bad", error: "no" }];
  narrow(world.graph.nodes, solvers, false);
  assert.equal(sampler.widgets[0].value, 20);
  narrow(world.graph.nodes, solvers, true);
  assert.deepEqual(sampler.widgets[0].options.values, [4, 6]);
  assert.equal(sampler.widgets[0].value, 6);
  assert.deepEqual(free.widgets[0].options.values, [4, 5, 6]);
  assert.equal(free.widgets[0].value, 5);
});

test("steps that are being trained can be chosen, with Save Solver between or not", () => {
  const world = fakeGraph();
  const [train, save, sampler, later] = ["S4STrainSolver", "S4SSaveSolver", "S4SKSampler", "S4SSampler"].map(world.put);
  train.connect(0, save, 0);
  train.connect(0, sampler, 1);
  save.connect(0, later, 0);
  train.widgets[0].value = "7, 4 7";
  sampler.widgets[0].value = later.widgets[0].value = 5;
  narrow(world.graph.nodes, [solver({ nfes: [5] })], true);
  for (const node of [sampler, later]) {
    assert.deepEqual(node.widgets[0].options.values, [4, 7]);
    assert.equal(node.widgets[0].value, 4);
  }
  for (const nothing of ["", "five", null]) {
    train.widgets[0].value = nothing;
    assert.equal(stepsOf(sampler, new Map()), undefined);
  }
  save.connect(0, save, 0);
  assert.equal(stepsOf(later, new Map()), undefined);
});
