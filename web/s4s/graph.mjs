// What adding a solver does to the graph: first a plan (pure), then its execution.
//
// A plan: {add: {key: {type, at: [columns, rows]}}, links: [[from, output type, to, input name]],
//          set: [[key, widget, value]]}. The key "selected" is the selected node; positions are
// relative to it, in node sizes. `through` [input name, key]: what was connected to that input of the
// selected node is now connected to the input "model" of the node with that key.

const LOAD = "S4SLoadSolver";
const APPLY = "S4SApplySolver";
const SAMPLER = "S4SSampler";
const SOLVER = "S4S_SOLVER";

/** Return what a plan needs to know about a LiteGraph node; null without a node. */
export function describe(node) {
  return node && {
    type: node.type,
    inputs: (node.inputs ?? []).map(({ name, type }) => ({ name, type: String(type) })),
    outputs: (node.outputs ?? []).map(({ type }) => String(type)),
    widgets: (node.widgets ?? []).map(({ name }) => name),
  };
}

const input = (node, type) => node?.inputs.find((slot) => slot.type === type)?.name;

/** Return the plan for a solver file and the selected node (described) or null.
 *  - a Load Solver node takes the file;
 *  - a node that takes a solver gets a Load Solver;
 *  - a sampler node with SAMPLER and SIGMAS gets Load Solver and Sampler (S4S);
 *  - a KSampler gets Load Solver and Apply Solver before its model input, and `s4s` as settings;
 *  - a node with a MODEL output is connected to a new Apply Solver; otherwise nothing is connected. */
export function plan(selected, file, nfe) {
  const load = { add: { load: { type: LOAD, at: [-1, 0] } }, links: [], set: [["load", "solver", file]] };
  if (selected?.type === LOAD) return { add: {}, links: [], set: [["selected", "solver", file]] };
  if (input(selected, SOLVER))
    return { ...load, links: [["load", SOLVER, "selected", input(selected, SOLVER)]] };

  if (input(selected, "SAMPLER") && input(selected, "SIGMAS"))
    return {
      add: { load: { type: LOAD, at: [-2, 0] }, sampler: { type: SAMPLER, at: [-1, 0] } },
      links: [
        ["load", SOLVER, "sampler", "solver"],
        ["sampler", "SAMPLER", "selected", input(selected, "SAMPLER")],
        ["sampler", "SIGMAS", "selected", input(selected, "SIGMAS")],
      ],
      set: [["load", "solver", file], ["sampler", "steps", nfe]],
    };

  const both = {
    add: { load: { type: LOAD, at: [-1, 1] }, apply: { type: APPLY, at: [-1, 0] } },
    links: [["load", SOLVER, "apply", "solver"]],
    set: [["load", "solver", file]],
  };
  const settings = ["sampler_name", "scheduler", "steps"];
  if (input(selected, "MODEL") && settings.every((name) => selected.widgets.includes(name)))
    return {
      ...both,
      links: [...both.links, ["apply", "MODEL", "selected", input(selected, "MODEL")]],
      set: [...both.set, ...settings.map((name) => ["selected", name, name === "steps" ? nfe : "s4s"])],
      through: [input(selected, "MODEL"), "apply"],
    };
  if (selected?.outputs.includes("MODEL"))
    return {
      add: { load: { type: LOAD, at: [1, 1] }, apply: { type: APPLY, at: [1, 0] } },
      links: [...both.links, ["selected", "MODEL", "apply", "model"]],
      set: both.set,
    };
  return { ...both, add: { load: { type: LOAD, at: [0, 0] }, apply: { type: APPLY, at: [1, 0] } } };
}

const COLUMN = 330;
const ROW = 150;

function setWidget(node, name, value) {
  const widget = node.widgets?.find((one) => one.name === name);
  if (!widget) return;
  const values = widget.options?.values;
  if (Array.isArray(values) && !values.includes(value)) values.push(value); // the file is newer than the page
  widget.value = value;
  widget.callback?.(value);
}

function connect(from, type, to, name) {
  const output = from.outputs?.findIndex((slot) => slot.type === type) ?? -1;
  const slot = to.inputs?.findIndex((one) => one.name === name) ?? -1;
  if (output >= 0 && slot >= 0) from.connect(output, to, slot);
}

function passThrough(graph, selected, name, node) {
  const link = selected.getInputLink(selected.inputs.findIndex((slot) => slot.name === name));
  const source = link && graph.getNodeById(link.origin_id);
  if (source) source.connect(link.origin_slot, node, node.inputs.findIndex((slot) => slot.name === "model"));
}

/** Execute a plan; `host` is {graph, canvas, createNode, centre}. Return the added nodes. */
export function carryOut({ add, links, set, through }, selected, host) {
  const { graph, canvas } = host;
  const origin = selected ? selected.pos : host.centre;
  canvas.emitBeforeChange?.();
  const nodes = { selected };
  for (const [key, { type, at }] of Object.entries(add)) {
    const node = host.createNode(type);
    if (!node) throw new Error(`ComfyUI knows no node ${type}: restart it.`);
    node.pos = [origin[0] + at[0] * COLUMN, origin[1] + at[1] * ROW];
    graph.add(node);
    nodes[key] = node;
  }
  if (through) passThrough(graph, selected, through[0], nodes[through[1]]);
  for (const [from, type, to, name] of links) connect(nodes[from], type, nodes[to], name);
  for (const [key, name, value] of set) setWidget(nodes[key], name, value);
  canvas.emitAfterChange?.();
  graph.setDirtyCanvas?.(true, true);
  return Object.keys(add).map((key) => nodes[key]);
}
