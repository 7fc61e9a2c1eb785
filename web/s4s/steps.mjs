// The list of steps on a node follows the solver that is wired to it.

const [LOAD, TRAIN, SAVE] = ["S4SLoadSolver", "S4STrainSolver", "S4SSaveSolver"];

/** {node type: the widget that its solver's steps follow}. */
export const deciding = { [LOAD]: "solver", [TRAIN]: "nfes" };

/** Node types whose `steps` is a list of what the solver holds. */
export const withSteps = new Set(["S4SSampler", "S4SKSampler"]);

/** The number of steps in `nfes` that is nearest to `steps`; the smaller of two. */
export function nearest(nfes, steps) {
  const distance = (nfe) => Math.abs(nfe - steps);
  return [...nfes].sort((a, b) => distance(a) - distance(b) || a - b)[0];
}

const value = (node, name) => node.widgets?.find((widget) => widget.name === name)?.value;

/** What a node's solver comes from, Save Solver passed through; null if nothing is wired. */
function sourceOf(node, passed = new Set()) {
  const slot = (node.inputs ?? []).findIndex((input) => input.name === "solver");
  const source = slot < 0 ? null : node.getInputNode(slot);
  if (source?.type !== SAVE || passed.has(source)) return source; // a graph may be a ring
  return sourceOf(source, passed.add(source));
}

/** The numbers in a text of Train Solver, such as 4,5,6, ascending. */
function numbers(text) {
  return [...new Set(String(text ?? "").match(/\d+/g)?.map(Number))].sort((a, b) => a - b);
}

/** The steps of the solver that is wired to a node: those of its file, by `known`, or those that it
 * is trained for; undefined if it is not known. */
export function stepsOf(node, known) {
  const source = sourceOf(node);
  if (source?.type === LOAD) return known.get(value(source, "solver"));
  const trained = source?.type === TRAIN ? numbers(value(source, "nfes")) : [];
  return trained.length ? trained : undefined;
}

/** Offer on each such node the steps of its solver only; a node whose solver is not known offers
 * what all files hold. With `move`, a choice that is not among them goes to the nearest: when
 * somebody wires or chooses, but not when a workflow is opened. */
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
