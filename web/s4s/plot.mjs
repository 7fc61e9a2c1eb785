// Plots a solver's table: its noise levels on the left, its weights on the right, its guidance below.

import { element } from "./dom.mjs";
import { number } from "./format.mjs";

const PAD = 6;
const GAP = 12;

/** Heights in 0..1 (1 is the most noise) of noise levels: linear for flow, otherwise logarithmic, with
 * a level of 0 at height 0. */
export function heights(levels, space) {
  if (space === "flow") return levels.map((level) => Math.min(1, Math.max(0, level)));
  const positive = levels.filter((level) => level > 0);
  const [low, high] = [Math.log(Math.min(...positive)), Math.log(Math.max(...positive))];
  const span = high - low || 1;
  return levels.map((level) => (level > 0 ? 0.12 + (0.88 * (Math.log(level) - low)) / span : 0));
}

/** Points of the curve: {nodes: [[x, y, sigma]], calls: [...]} inside a box of width and height.
 * Calls are placed at their node; the list is empty if call times equal the nodes. */
export function curve(table, width, height) {
  const { sigmas, call_sigmas: calls } = table;
  const up = heights([...sigmas, ...calls], table.space);
  const place = (share, level) => [PAD + share * (width - 2 * PAD), PAD + (1 - level) * (height - 2 * PAD)];
  const nodes = sigmas.map((s, i) => [...place(i / (sigmas.length - 1), up[i]), s]);
  const moved = calls.length !== sigmas.length - 1 || calls.some((s, i) => Math.abs(s - sigmas[i]) > 1e-6 * s);
  const share = (i) => i / calls.length;
  return {
    nodes,
    calls: moved ? calls.map((s, i) => [...place(share(i), up[sigmas.length + i]), s]) : [],
  };
}

/** Cells of the weights b: [x, y, width, height, weight, strength in -1..1], one row per step. */
export function cells(table, left, width, height) {
  const rows = table.coefficients?.b ?? [];
  const [wide, tall] = [width / (rows[0]?.length || 1), (height - 2 * PAD) / (rows.length || 1)];
  const largest = Math.max(...rows.flat().map(Math.abs), 1e-9);
  return rows.flatMap((row, i) =>
    row.map((w, j) => [left + j * wide, PAD + i * tall, wide, tall, w, w / largest]));
}

/** Draw the plot as SVG; colours come from the style sheet. */
export function tablePlot(table, width = 260, height = 96) {
  const right = Math.min(110, 26 * table.order);
  const { nodes, calls } = curve(table, width - right - GAP, height);
  const dot = (kind, what) => ([x, y, sigma]) =>
    element("circle", { class: kind, cx: x.toFixed(1), cy: y.toFixed(1), r: 2.6 },
      element("title", {}, `${what} σ = ${number(sigma)}`));
  const cell = ([x, y, w, h, weight, strength]) =>
    element("rect", {
      class: strength < 0 ? "s4s-minus" : "s4s-plus", "fill-opacity": Math.abs(strength).toFixed(3),
      x: (x + 0.5).toFixed(1), y: (y + 0.5).toFixed(1), width: (w - 1).toFixed(1), height: (h - 1).toFixed(1),
    }, element("title", {}, number(weight)));
  return element("svg", { class: "s4s-plot", viewBox: `0 0 ${width} ${height}`, role: "img" },
    element("polyline", { class: "s4s-curve", points: nodes.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ") }),
    nodes.map(dot("s4s-node", "")),
    calls.map(dot("s4s-call", "→")),
    cells(table, width - right - PAD, right, height).map(cell));
}

/** Bars of the multipliers of guidance: [x, y, width, height, multiplier], and the height of the line at 1. */
export function guidanceBars(guidance, width, height) {
  const highest = Math.max(1, ...guidance);
  const up = (value) => height - PAD - (value / highest) * (height - 2 * PAD);
  const wide = (width - 2 * PAD) / guidance.length;
  const bars = guidance.map((m, i) => [PAD + (i + 0.15) * wide, up(m), 0.7 * wide, height - PAD - up(m), m]);
  return { bars, one: up(1) };
}

/** Draw the guidance of each call as SVG, with a line where it is as the artist sets it. */
export function guidancePlot(guidance, width = 260, height = 48) {
  const { bars, one } = guidanceBars(guidance, width, height);
  return element("svg", { class: "s4s-plot s4s-guidance", viewBox: `0 0 ${width} ${height}`, role: "img" },
    bars.map(([x, y, w, h, multiplier]) =>
      element("rect", { class: "s4s-plus", x: x.toFixed(1), y: y.toFixed(1), width: w.toFixed(1), height: h.toFixed(1) },
        element("title", {}, `× ${number(multiplier)}`))),
    element("line", { class: "s4s-one", x1: PAD, x2: width - PAD, y1: one.toFixed(1), y2: one.toFixed(1) }));
}
