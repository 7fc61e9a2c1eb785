import assert from "node:assert/strict";
import { test } from "node:test";

import { classicalName, clean, duration, firstNfe, gain, matches, measures, modelName, number, parts, percent, picture, steps } from "../../../web/s4s/format.mjs";
import { solver } from "./samples.mjs";

test("clean keeps every script, reveals hidden characters and never cuts inside one", () => {
  assert.equal(clean("Żółw 求解器 🦊"), "Żółw 求解器 🦊");
  assert.equal(clean("a\u202egpj.exe\nb\u0000c\u200bd"), "a\ufffdgpj.exe\ufffdb\ufffdc\ufffdd");
  assert.equal(clean(null), "");
  assert.equal(clean("🦊".repeat(30), 5), "🦊🦊🦊🦊…");
  assert.equal(clean("x".repeat(100_000), 80).length, 80);
});

const each = (of, cases) => { for (const [given, text] of cases) assert.equal(of(given), text); };

test("steps, numbers, durations and shares are written shortly", () => {
  each(steps, [[[3, 4, 5, 6], "3–6"], [[10, 9, 8], "8–10"], [[4, 5], "4, 5"], [[4, 5, 8], "4, 5, 8"], [[7], "7"]]);
  each(number, [[0.067391, "0.0674"], [80, "80"], [1234.5, "1230"], [0, "0"], [-1.2748, "-1.27"],
    [0.00001, "1.0e-5"], [3e7, "3.0e+7"], [NaN, "–"], [undefined, "–"]]);
  each(duration, [[0, "0 s"], [59, "59 s"], [59.7, "1 min"], [100, "2 min"], [3600, "1 h 0 min"],
    [4830, "1 h 21 min"], [null, "–"], [-1, "–"]]);
  each(percent, [[0.424, 42], [-1, 0], [7, 100], [NaN, 0], [undefined, 0]]);
  each(firstNfe, [[[3, 4, 5, 6], 5], [[4, 8, 6], 6], [[2, 3], 3], [[], null]]); // 5 or the next above
});

test("the gain is that of the error, and null where the file has none", () => {
  assert.deepEqual([gain(solver(), 5), classicalName(solver(), 5)], [25, "unipc-bh2 2, ays"]);
  assert.deepEqual([gain(solver(), 4), measures(solver(), 4), classicalName(solver(), 4)], [null, [], ""]);
  const alone = { 5: [{ name: "rmse", ours: 0.1, classical: null, ratio: null }] };
  assert.equal(gain(solver({ measures: alone }), 5), null);
});

test("parts are those of one NFE, each with the ratio of its error if it is known", () => {
  assert.deepEqual(parts(solver(), 5), [{ level: 3.2, strength: 0.5, ratio: 0.8 }, { level: 1.161, strength: null, ratio: null }]);
  assert.deepEqual([parts(solver(), 4), parts({}, 5)], [[], []]);
});

test("a search must match every word in name, file or model", () => {
  const one = solver({ name: "Juggernaut fast", file: "sdxl/jug.safetensors", model: { name: "juggernautXL" } });
  for (const typed of ["", "fast", "SDXL jug", "juggernautxl fast"]) assert.ok(matches(one, typed), typed);
  assert.ok(!matches(one, "fast flux"));
});

test("a model's name may be anything in the file", () => {
  each((model) => modelName(solver({ model })), [[{}, ""], [{ name: 3 }, ""], [null, ""], ["sdxl", "sdxl"]]);
});

test("only bitmaps are pictures", () => {
  assert.equal(picture("data:image/png;base64,AAAA"), "data:image/png;base64,AAAA");
  for (const bad of ["data:image/svg+xml;base64,AAAA", "javascript:alert(1)", "https://example.org/x.png",
    "data:text/html;base64,AAAA", 'data:image/png;base64,AA" onload="x', null, {}])
    assert.equal(picture(bad), null);
});
