// The sidebar's cards for solver files and trainings.

import { thumbnailPath } from "./client.mjs";
import { button, element } from "./dom.mjs";
import {
  classicalName, clean, duration, gain, measures, modelName, number, parts, percent, picture, steps,
} from "./format.mjs";
import { guidancePlot, tablePlot } from "./plot.mjs";

const RUNNING = new Set(["queued", "running"]);

export const isRunning = (job) => RUNNING.has(job.status);

function thumbnail(solver, { url }) {
  const path = thumbnailPath(solver);
  return path
    ? element("img", { class: "s4s-thumbnail", src: url(path), alt: "", loading: "lazy" })
    : element("div", { class: "s4s-thumbnail" }, element("i", { class: "pi pi-chart-line" }));
}

/** A bar for each measure: the solver's part of what the best classical solver has at as many calls. */
function scoreBars(solver, nfe, { t }) {
  const known = measures(solver, nfe);
  if (known.length === 0) return element("div", { class: "s4s-faint" }, t("unscored"));
  const titles = { rmse: t("error"), median: t("median"), bands: t("bands"), lpips: t("lpips") };
  const row = ({ name, ours, ratio }) => [
    element("span", { class: "s4s-label" }, titles[name]),
    element("span", { class: `s4s-bar ${ratio > 1 ? "s4s-worse" : ""}` },
      element("span", { style: `width: ${percent(ratio)}%` })),
    element("span", { class: "s4s-value" },
      Number.isFinite(ratio) ? `${number(ours)} · ${Math.round(100 * ratio)} %` : number(ours)),
  ];
  const classical = known.find(({ name }) => name === "rmse")?.classical;
  const name = classicalName(solver, nfe) || t("classical");
  return [
    element("div", { class: "s4s-score", title: t("scoreHelp") }, known.flatMap(row)),
    Number.isFinite(classical) && element("div", { class: "s4s-legend s4s-faint" },
      t("best", { name, error: number(classical) })),
  ];
}

/** A line that says from where image-to-image was trained, with the parts' ratios of the error. */
function partsLine(solver, nfe, { t }) {
  const begins = ({ level, strength }) =>
    strength === null ? t("level", { level: number(level) }) : t("strength", { strength: number(strength) });
  const said = parts(solver, nfe).map((part) =>
    Number.isFinite(part.ratio) ? `${begins(part)} · ${Math.round(100 * part.ratio)} %` : begins(part));
  const all = clean(said.join(", "), 300);
  return all && element("div", { class: "s4s-legend s4s-faint", title: t("scoreHelp") }, t("parts", { parts: all }));
}

function gainMark(solver, nfe, { t }) {
  const saved = gain(solver, nfe);
  if (!saved) return null;
  return element("span", { class: saved > 0 ? "s4s-gain" : "s4s-loss", title: t("scoreHelp") },
    t(saved > 0 ? "gain" : "loss", { percent: Math.abs(saved) }));
}

/** The plots of a table, each with what it shows below it. */
function plots(table, { t }) {
  const legend = (...texts) =>
    element("div", { class: "s4s-legend s4s-faint" }, texts.map((text) => element("span", {}, text)));
  const { guidance } = table;
  const values = clean(guidance?.map((multiplier) => multiplier.toFixed(2)).join(", "), 160);
  return [
    tablePlot(table), legend(t("levels"), t("weights")),
    guidance && guidancePlot(guidance),
    guidance && legend(t("guidance", { values })),
  ];
}

function nfeChips(solver, shown, { t, choose }) {
  const chip = (nfe) => element("button", {
    type: "button", class: "s4s-chip", "aria-pressed": String(nfe === shown),
    title: t("chooseSteps", { nfe }), "data-key": `${nfe}/${solver.file}`,
    onclick: () => choose(solver.file, nfe),
  }, nfe);
  return element("div", { class: "s4s-chips" }, element("span", { class: "s4s-label" }, t("steps")),
    solver.nfes.map(chip));
}

function about(solver, { t }) {
  const cfg = [...new Set(solver.cfg ?? [])].map(number).join("–");
  const size = solver.resolution?.length === 2 ? solver.resolution.map(Math.round).join(" × ") : "";
  const facts = [modelName(solver), cfg && t("cfg", { cfg }), size, solver.space === "flow" && "flow"];
  return element("div", { class: "s4s-faint s4s-clip" }, facts.filter(Boolean).join(" · "));
}

/** A solver file. `shown` is {nfe, table (or null), open}; `use` has t, url, add, choose, toggle. */
export function solverCard(solver, shown, use) {
  const { t } = use;
  const file = clean(solver.file, 120);
  if (solver.error)
    return element("article", { class: "s4s-card s4s-broken" },
      element("strong", { class: "s4s-clip", dir: "auto" }, file),
      element("div", { class: "s4s-error" }, clean(solver.error, 400)));
  const open = [
    nfeChips(solver, shown.nfe, use),
    scoreBars(solver, shown.nfe, use),
    partsLine(solver, shown.nfe, use),
    shown.table && plots(shown.table, use),
  ];
  return element("article", { class: "s4s-card" },
    element("header", {},
      thumbnail(solver, use),
      element("button", {
        type: "button", class: "s4s-title", "aria-expanded": String(shown.open), title: file,
        "data-key": `open/${solver.file}`, onclick: () => use.toggle(solver.file),
      },
      element("strong", { class: "s4s-clip", dir: "auto" }, clean(solver.name, 80) || file),
      about(solver, use),
      element("div", { class: "s4s-faint s4s-line" },
        element("span", { class: "s4s-clip" }, t("stepsList", { steps: steps(solver.nfes) })), gainMark(solver, shown.nfe, use))),
      button("pi-plus", t("add"), {
        class: "s4s-button s4s-primary", title: t("addHelp"), "data-key": `add/${solver.file}`,
        onclick: () => use.add(solver, shown.nfe),
      })),
    shown.open && element("div", { class: "s4s-body" }, open.flat()));
}

function progress(job, { t }) {
  const done = percent(job.progress);
  const left = Number.isFinite(job.eta) ? t("left", { time: duration(job.eta) }) : "";
  return [
    element("div", {
      class: "s4s-progress", role: "progressbar", "aria-valuenow": done, "aria-valuemin": 0, "aria-valuemax": 100,
    }, element("span", { style: `width: ${done}%` })),
    element("div", { class: "s4s-faint s4s-row" }, element("span", {}, `${done} %`), element("span", {}, left)),
  ];
}

/** A training: its progress and a cancel button while it runs, then how it ended. `use` has t, cancel,
 * dismiss and cancelling (the ids of jobs that are being cancelled). */
export function jobCard(job, use) {
  const { t } = use;
  const asked = use.cancelling.has(job.id);
  const preview = picture(job.preview);
  const nfes = Array.isArray(job.nfes) && job.nfes.length ? t("stepsList", { steps: steps(job.nfes) }) : "";
  const action = isRunning(job)
    ? button("pi-times", t(asked ? "cancelling" : "cancel"), {
        class: "s4s-button", disabled: asked, "data-key": `cancel/${job.id}`, onclick: () => use.cancel(job),
      })
    : button("pi-times", "", {
        class: "s4s-button s4s-bare", title: t("dismiss"), "aria-label": t("dismiss"),
        onclick: () => use.dismiss(job),
      });
  return element("article", { class: `s4s-card s4s-job s4s-${RUNNING.has(job.status) ? "running" : clean(job.status, 20)}` },
    element("header", {},
      element("div", { class: "s4s-title" },
        element("strong", { class: "s4s-clip", dir: "auto" }, clean(job.name, 80) || t("training")),
        element("div", { class: "s4s-faint s4s-clip" }, [clean(job.model, 80), nfes].filter(Boolean).join(" · "))),
      element("span", { class: "s4s-status" }, t(`status.${clean(job.status, 20)}`)),
      action),
    isRunning(job) && progress(job, use),
    job.message && isRunning(job) && element("div", { class: "s4s-faint s4s-clip" }, clean(job.message, 200)),
    job.estimate && isRunning(job) && element("div", { class: "s4s-faint" }, clean(job.estimate, 200)),
    job.error && element("div", { class: "s4s-error" }, clean(job.error, 400)),
    job.result && element("div", { class: "s4s-faint s4s-clip" }, t("saved", { file: clean(job.result, 120) })),
    preview && element("img", { class: "s4s-preview", src: preview, alt: t("preview") }));
}
