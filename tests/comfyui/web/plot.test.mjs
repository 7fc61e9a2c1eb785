import assert from "node:assert/strict";
import { test } from "node:test";

import { cells, curve, guidanceBars, guidancePlot, heights, tablePlot } from "../../../web/s4s/plot.mjs";
import { byClass, installDom } from "./fake_dom.mjs";
import { table } from "./samples.mjs";

test("noise levels fall from 1, on a logarithmic scale that ends above zero; flow levels are their own heights", () => {
  const [first, second, third, last] = heights([100, 10, 1, 0], "ve");
  assert.ok(Math.abs(first - 1) < 1e-12);
  assert.ok(Math.abs(first - second - (second - third)) < 1e-12);
  assert.ok(third > 0.1 && last === 0);
  assert.deepEqual(heights([1, 0.75, 0.2, 0], "flow"), [1, 0.75, 0.2, 0]);
});

test("the curve runs from the top left to the bottom right, with the call times that differ from nodes", () => {
  const { nodes, calls } = curve(table(), 200, 100);
  assert.equal(nodes.length, 4);
  assert.deepEqual(calls, []);
  const xs = nodes.map(([x]) => x);
  const ys = nodes.map(([, y]) => y);
  assert.deepEqual(xs, [...xs].sort((a, b) => a - b));
  assert.deepEqual(ys, [...ys].sort((a, b) => a - b));
  assert.ok(xs[0] >= 0 && xs.at(-1) <= 200 && ys[0] >= 0 && ys.at(-1) <= 100);
  assert.equal(curve(table({ call_sigmas: [80, 7, 1] }), 200, 100).calls.length, 3);
});

test("each weight is a cell, the largest the strongest", () => {
  const found = cells(table(), 100, 50, 90);
  assert.equal(found.length, 6);
  const strengths = found.map((cell) => cell[5]);
  assert.equal(Math.max(...strengths), 1);
  assert.ok(strengths.some((strength) => strength < 0));
});

test("the bars of guidance stand on one line, as high as their multipliers", () => {
  const { bars, one } = guidanceBars([0.5, 2, 0], 200, 52);
  assert.deepEqual(bars.map(([, , , tall]) => tall), [10, 40, 0]);
  assert.ok(bars.every(([, y, , tall]) => y + tall === 46) && one === 26);
  assert.ok(bars.every(([x, , wide]) => x >= 0 && x + wide <= 200));
  installDom();
  for (const guidance of [[1], [0, 0], [1e300, 1]])
    for (const shape of guidancePlot(guidance).all())
      assert.ok(Object.values(shape.attributes).every((value) => !/NaN|Infinity/.test(value)));
});

test("a plot contains only finite numbers", () => {
  installDom();
  const single = table({ nfe: 1, order: 1, sigmas: [80, 0], call_sigmas: [80], coefficients: { b: [[1]] } });
  const staged = table({ family: "ss", nfe: 4, sigmas: [1, 0.5, 0], call_sigmas: [1, 0.7, 0.5, 0.2], space: "flow",
    coefficients: { b: [[0.5, 0.5], [1, 0]], a: [] } });
  for (const one of [table(), single, staged]) {
    const picture = tablePlot(one);
    const numbers = picture.all().flatMap((shape) => Object.values(shape.attributes));
    assert.ok(numbers.every((value) => !/NaN|Infinity/.test(value)));
    assert.equal(byClass(picture, "s4s-node").length, one.sigmas.length);
  }
});
