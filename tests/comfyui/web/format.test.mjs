import assert from "node:assert/strict";
import { test } from "node:test";

import { clean, duration, firstNfe, matches, modelName, number, percent, picture, score, steps } from "../../../web/s4s/format.mjs";
import { solver } from "./samples.mjs";

test("clean keeps letters of every script and reveals hidden characters", () => {
  assert.equal(clean("Żółw 求解器 🦊"), "Żółw 求解器 🦊");
  assert.equal(clean("a\u202egpj.exe\nb\u0000c\u200bd"), "a\ufffdgpj.exe\ufffdb\ufffdc\ufffdd");
  assert.equal(clean(null), "");
});

test("clean cuts by characters, never inside one", () => {
  assert.equal(clean("🦊".repeat(30), 5), "🦊🦊🦊🦊…");
  assert.equal(clean("x".repeat(100_000), 80).length, 80);
});

test("steps are a range only without gaps", () => {
  assert.equal(steps([3, 4, 5, 6]), "3–6");
  assert.equal(steps([10, 9, 8]), "8–10");
  assert.equal(steps([4, 5]), "4, 5");
  assert.equal(steps([4, 5, 8]), "4, 5, 8");
  assert.equal(steps([7]), "7");
});

test("numbers have three digits", () => {
  for (const [value, text] of [[0.067391, "0.0674"], [80, "80"], [1234.5, "1230"], [0, "0"], [-1.2748, "-1.27"],
    [0.00001, "1.0e-5"], [3e7, "3.0e+7"], [NaN, "–"], [undefined, "–"]])
    assert.equal(number(value), text);
});

test("durations", () => {
  for (const [seconds, text] of [[0, "0 s"], [59, "59 s"], [59.7, "1 min"], [100, "2 min"], [3600, "1 h 0 min"],
    [4830, "1 h 21 min"], [null, "–"], [-1, "–"]])
    assert.equal(duration(seconds), text);
});

test("percent stays between 0 and 100", () => {
  assert.deepEqual([0.424, -1, 7, NaN, undefined].map(percent), [42, 0, 100, 0, 0]);
});

test("score returns the gain, or null without scores", () => {
  const { ratio, gain, name } = score(solver(), 5);
  assert.ok(Math.abs(ratio - 0.748) < 1e-3);
  assert.equal(gain, 25);
  assert.equal(name, "unipc-bh2 2, ays");
  assert.equal(score(solver(), 4), null);
  for (const entry of [{}, { rmse: "0.1", classical: 1 }, { rmse: 1, classical: 0 }, { rmse: -1, classical: 1 }])
    assert.equal(score(solver({ scores: { 5: entry } }), 5), null);
  assert.equal(score(solver({ scores: null }), 5), null);
});

test("the first NFE shown is 5 or the next above", () => {
  assert.equal(firstNfe([3, 4, 5, 6]), 5);
  assert.equal(firstNfe([4, 8, 6]), 6);
  assert.equal(firstNfe([2, 3]), 3);
  assert.equal(firstNfe([]), null);
});

test("a search must match every word in name, file or model", () => {
  const one = solver({ name: "Juggernaut fast", file: "sdxl/jug.safetensors", model: { name: "juggernautXL" } });
  for (const typed of ["", "fast", "SDXL jug", "juggernautxl fast"]) assert.ok(matches(one, typed), typed);
  assert.ok(!matches(one, "fast flux"));
});

test("a model's name may be anything in the file", () => {
  assert.equal(modelName(solver({ model: {} })), "");
  assert.equal(modelName(solver({ model: { name: 3 } })), "");
  assert.equal(modelName(solver({ model: null })), "");
  assert.equal(modelName(solver({ model: "sdxl" })), "sdxl");
});

test("only bitmaps are pictures", () => {
  assert.equal(picture("data:image/png;base64,AAAA"), "data:image/png;base64,AAAA");
  for (const bad of ["data:image/svg+xml;base64,AAAA", "javascript:alert(1)", "https://example.org/x.png",
    "data:text/html;base64,AAAA", 'data:image/png;base64,AA" onload="x', null, {}])
    assert.equal(picture(bad), null);
});
