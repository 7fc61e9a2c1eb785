// Formats numbers and untrusted text.

// Control characters, and marks that change the direction of text or hide it.
const UNSHOWABLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Clean text from a file or a server: one line, nothing invisible, at most `most` characters. */
export function clean(text, most = 200) {
  const characters = [...String(text ?? "").replace(UNSHOWABLE, "\ufffd")];
  return characters.length > most ? characters.slice(0, most - 1).join("") + "…" : characters.join("");
}

/** "3–10" for a range of three or more without gaps, otherwise "4, 5, 8". */
export function steps(nfes) {
  const sorted = [...nfes].sort((a, b) => a - b);
  const [first, last] = [sorted[0], sorted.at(-1)];
  const unbroken = sorted.length > 2 && last - first === sorted.length - 1;
  return unbroken ? `${first}–${last}` : sorted.join(", ");
}

/** Three significant digits, with an exponent only if needed to be readable. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4
    ? value.toExponential(1)
    : String(Number(value.toPrecision(3)));
}

/** Seconds as "45 s", "3 min", "1 h 20 min". */
export function duration(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A fraction as whole percent between 0 and 100. */
export function percent(fraction) {
  return Number.isFinite(fraction) ? Math.round(100 * Math.min(1, Math.max(0, fraction))) : 0;
}

/** The measures of a table, by its NFE or its name, as the server describes them:
 * [{name, ours, classical, ratio}]; `classical` and `ratio`, those of the best classical solver, may be null. */
export const measures = (solver, table) => solver?.measures?.[String(table)] ?? [];

const errorRatio = (solver, table) => measures(solver, table).find(({ name }) => name === "rmse")?.ratio;

/** The reduction of the error against the best classical solver in whole percent; null if unknown. */
export function gain(solver, nfe) {
  const ratio = errorRatio(solver, nfe);
  return Number.isFinite(ratio) ? Math.round(100 * (1 - ratio)) : null;
}

/** The parts of a solver (its tables for image-to-image) at one NFE: [{level, strength, ratio}], with the
 * ratio of the error; all but the level may be null. */
export const parts = (solver, nfe) => (solver?.parts ?? []).filter((part) => part.nfe === nfe)
  .map(({ name, level, strength }) => ({ level, strength, ratio: errorRatio(solver, name) ?? null }));

/** The name of the classical solver with the smallest error at one NFE, or "". */
export const classicalName = (solver, nfe) => clean(solver?.scores?.[String(nfe)]?.classical_name ?? "", 40);

/** The NFE to show first: the smallest with at least 5 steps, otherwise the largest. */
export function firstNfe(nfes) {
  const sorted = [...nfes].sort((a, b) => a - b);
  return sorted.find((nfe) => nfe >= 5) ?? sorted.at(-1) ?? null;
}

/** Does a solver match the search: is each word in its name, file or model? */
export function matches(solver, typed) {
  const text = [solver.file, solver.name, modelName(solver)].join(" ").toLowerCase();
  return typed.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The model that a solver was trained for, as text; a file may contain anything there. */
export function modelName(solver) {
  const model = solver?.model;
  const name = typeof model === "object" && model !== null ? model.name : model;
  return typeof name === "string" ? clean(name, 80) : "";
}

/** Return a picture if it is a data URI of a bitmap, otherwise null. */
export function picture(uri) {
  const bitmap = /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}$/;
  return typeof uri === "string" && bitmap.test(uri) ? uri : null;
}
