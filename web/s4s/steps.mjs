// The list of steps on a node follows the solver that is wired to it.

const LOAD = "S4SLoadSolver";

/** Node types whose `steps` is a list of what the solver holds. */
export const withSteps = new Set(["S4SSampler", "S4SKSampler"]);

/** The number of steps in `nfes` that is nearest to `steps`; the smaller of two. */
export function nearest(nfes, steps) {
  const distance = (nfe) => Math.abs(nfe - steps);
  return [...nfes].sort((a, b) => distance(a) - distance(b) || a - b)[0];
}

/** The file that a node's solver comes from; null if it is not wired straight to a Load Solver. */
export function fileOf(node) {
  const slot = (node.inputs ?? []).findIndex((input) => input.name === "solver");
  const source = slot < 0 ? null : node.getInputNode(slot);
  return source?.type === LOAD ? source.widgets.find((widget) => widget.name === "solver")?.value : null;
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
    const own = known.get(fileOf(node));
    widget.options.values = own ?? all;
    if (move && own && !own.includes(Number(widget.value))) widget.value = nearest(own, Number(widget.value));
  }
}
