// A solver, a table and a job as the routes return them.

export const solver = (more = {}) => ({
  file: "demo.safetensors", error: null, thumbnail: null, name: "demo solver", notes: null,
  model: { name: "demo" }, space: "ve", nfes: [4, 5, 6], cfg: [2, 2], resolution: [32, 32],
  teacher: { nfe: 20 }, training: {}, sha256: "00",
  scores: { 5: { rmse: 0.0674, classical: 0.0901, classical_name: "unipc-bh2 2, ays" } },
  parts: [
    { name: "5@3.2", nfe: 5, level: 3.2, strength: 0.5 },
    { name: "5@1.161", nfe: 5, level: 1.161, strength: null },
    { name: "6@3.2", nfe: 6, level: 3.2, strength: 0.5 },
  ],
  ratios: { 5: 0.75, "5@3.2": 0.8 },
  measures: { 5: [
    { name: "rmse", ours: 0.0674, classical: 0.0901, ratio: 0.748 },
    { name: "median", ours: 0.05, classical: 0.04, ratio: 1.25 },
    { name: "bands", ours: 0.02, classical: 0.04, ratio: 0.5 },
  ], "5@3.2": [{ name: "rmse", ours: 0.04, classical: 0.05, ratio: 0.8 }] }, ...more,
});

export const table = (more = {}) => ({
  family: "lms", order: 2, form: "noise", space: "ve", ending: 0, nfe: 3,
  sigmas: [80, 8, 1, 0], call_sigmas: [80, 8, 1], guidance: null, coefficients: { b: [[1, 0], [1.7, -0.8], [1.1, -0.2]] }, ...more,
});

export const job = (more = {}) => ({
  id: "a1", name: "my solver", model: "demo", nfes: [5], status: "running", progress: 0.42, eta: 95,
  message: "NFE 5, iteration 3", error: null, exit_code: null, result: null, calls: 2000,
  estimate: "At most 9,000 model calls: about 3:20 at 45 calls a second, 2.1 GB.",
  created: "2026-01-01T00:00:00", ...more,
});
