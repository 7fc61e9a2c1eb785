// Keeps the step counts on a node in line with the solver connected to it.

const [LOAD, TRAIN, SAVE] = ["S4SLoadSolver", "S4STrainSolver", "S4SSaveSolver"];

/** {node type: the widget that determines the solver's step counts}. */
export const deciding = { [LOAD]: "solver", [TRAIN]: "nfes" };

/** Node types whose `steps` lists the solver's step counts. */
export const withSteps = new Set(["S4SSampler", "S4SKSampler"]);

/** The step count in `nfes` nearest to `steps`; of two, the smaller. */
export function nearest(nfes, steps) {
  const distance = (nfe) => Math.abs(nfe - steps);
  return [...nfes].sort((a, b) => distance(a) - distance(b) || a - b)[0];
}

const value = (node, name) => node.widgets?.find((widget) => widget.name === name)?.value;

/** The node that a node's solver comes from, skipping Save Solver; null if none is connected. */
function sourceOf(node, passed = new Set()) {
  const slot = (node.inputs ?? []).findIndex((input) => input.name === "solver");
  const source = slot < 0 ? null : node.getInputNode(slot);
  if (source?.type !== SAVE || passed.has(source)) return source; // a graph may contain a cycle
  return sourceOf(source, passed.add(source));
}

/** The numbers in a text such as 4,5,6, ascending. */
function numbers(text) {
  return [...new Set(String(text ?? "").match(/\d+/g)?.map(Number))].sort((a, b) => a - b);
}

/** The step counts of the solver connected to a node: its file's (from `known`), or those it is being
 * trained for; undefined if unknown. */
export function stepsOf(node, known) {
  const source = sourceOf(node);
  if (source?.type === LOAD) return known.get(value(source, "solver"));
  const trained = source?.type === TRAIN ? numbers(value(source, "nfes")) : [];
  return trained.length ? trained : undefined;
}

/** Make each node offer only its solver's step counts, or those of all files if its solver is unknown.
 * With `move`, a choice that is not offered changes to the nearest: used when the user connects or
 * chooses something, but not when a workflow is opened. */
export function narrow(nodes, solvers, move) {
  const known = new Map(solvers.filter((solver) => !solver.error).map((solver) => [solver.file, solver.nfes]));
  const all = [...new Set([...known.values()].flat())].sort((a, b) => a - b);
  for (const node of nodes) {
    const widget = withSteps.has(node.type) && node.widgets?.find((one) => one.name === "steps");
    if (!widget || all.length === 0) continue;
    const own = stepsOf(node, known);
    widget.options.values = own ?? all;
    if (move && own && !own.includes(Number(widget.value))) widget.value = nearest(own, Number(widget.value));
  }
}
