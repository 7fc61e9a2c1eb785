// The sidebar tab: its state, when it asks the server, and how it is drawn.

import { isRunning, jobCard, solverCard } from "./cards.mjs";
import { button, element } from "./dom.mjs";
import { clean, firstNfe, matches } from "./format.mjs";

const SEARCH_FROM = 5; // fewer files need no search field
const ENDED_SHOWN = 3;
const FILES_SHOWN = 100; // the others are found by search
const WHILE_RUNNING = 2_000; // milliseconds between requests for the jobs
const OTHERWISE = 15_000;
const ENDS = ["pointerup", "pointercancel"];

/** The jobs to show: the running ones, then the latest few that ended and were not dismissed. */
export function shownJobs(jobs, dismissed) {
  const ended = jobs.filter((job) => !isRunning(job) && !dismissed.has(job.id) && job.status !== "cancelled");
  return [...jobs.filter(isRunning), ...ended.slice(0, ENDED_SHOWN)];
}

/** Merge the listed jobs with what is only known from events: previews, and how a training in the
 * graph ended, which the server does not list. */
export function mergedJobs(known, listed) {
  const forgotten = known.filter((job) => !isRunning(job) && !listed.some(({ id }) => id === job.id) && job.node);
  return [...forgotten, ...listed.map((job) => ({ ...known.find(({ id }) => id === job.id), ...job }))];
}

/** Return the list with `view` replacing the job with its id, or in front. */
export function withJob(jobs, view) {
  return jobs.some((job) => job.id === view.id)
    ? jobs.map((job) => (job.id === view.id ? { ...job, ...view } : job))
    : [view, ...jobs];
}

/** Redraw, and restore the focus, the cursor and the scroll position. */
function keepFocus(container, redraw) {
  const before = container.contains(document.activeElement) ? document.activeElement : null;
  const [key, cursor, scrolled] = [before?.dataset.key, before?.selectionStart, container.scrollTop];
  redraw();
  container.scrollTop = scrolled;
  const after = key && [...container.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  if (!after) return;
  after.focus({ preventScroll: true });
  if (typeof cursor === "number") after.setSelectionRange(cursor, cursor);
}

/** `server` is a client (client.mjs); `use` has t, url(path), add(solver, nfe), openPanel(),
 * listed(solvers) and complain(text). Returns {render(container), destroy(), training(view)}. */
export function sidebar(server, use) {
  const { t } = use;
  const state = {
    solvers: null, folder: "", failure: null, jobs: [], typed: "", starting: false,
    open: new Set(), nfe: new Map(), tables: new Map(), dismissed: new Set(), cancelling: new Set(),
  };
  let container = null;
  let timer = null;
  let held = false;

  const shownNfe = ({ file, nfes = [] }) =>
    nfes.includes(state.nfe.get(file)) ? state.nfe.get(file) : firstNfe(nfes);

  async function loadSolvers() {
    try {
      const { solvers, folder } = await server.solvers();
      Object.assign(state, { solvers, folder, failure: null });
      use.listed(solvers);
      if (solvers.length === 1) toggleOpen(solvers[0].file, true);
      state.tables.clear();
      solvers.filter((one) => state.open.has(one.file)).forEach(loadTable);
    } catch (error) {
      Object.assign(state, { solvers: [], failure: error.message });
    }
    draw();
  }

  async function loadTable(solver) {
    if (!solver || solver.error) return;
    const nfe = shownNfe(solver);
    const key = `${nfe}/${solver.file}`;
    if (nfe === null || state.tables.has(key)) return;
    try {
      state.tables.set(key, await server.table(solver.file, nfe));
      draw();
    } catch (error) {
      use.complain(error.message);
    }
  }

  async function loadJobs() {
    try {
      const jobs = await server.jobs();
      const before = state.jobs;
      state.jobs = mergedJobs(before, jobs);
      const running = new Set(state.jobs.filter(isRunning).map(({ id }) => id));
      if (before.some((job) => isRunning(job) && !running.has(job.id))) loadSolvers();
      if (JSON.stringify(before) !== JSON.stringify(state.jobs)) draw();
    } catch {
      // The server is restarting or unreachable: keep what is shown and ask again later.
    }
  }

  async function watch() {
    await loadJobs();
    clearTimeout(timer); // another one may be pending
    if (container) timer = setTimeout(watch, state.jobs.some(isRunning) ? WHILE_RUNNING : OTHERWISE);
  }

  function toggleOpen(file, open) {
    if (open) state.open.add(file);
    else state.open.delete(file);
  }

  const actions = {
    ...use,
    cancelling: state.cancelling,
    toggle(file) {
      toggleOpen(file, !state.open.has(file));
      draw();
      if (state.open.has(file)) loadTable(state.solvers.find((one) => one.file === file));
    },
    choose(file, nfe) {
      state.nfe.set(file, nfe);
      draw();
      loadTable(state.solvers.find((one) => one.file === file));
    },
    async cancel(job) {
      state.cancelling.add(job.id);
      draw();
      try {
        await server.cancel(job.id);
      } catch (error) {
        use.complain(error.message);
      }
      await watch();
      state.cancelling.delete(job.id);
      draw();
    },
    dismiss(job) {
      state.dismissed.add(job.id);
      draw();
    },
    async panel() {
      if (state.starting) return;
      state.starting = true;
      draw();
      await use.openPanel();
      state.starting = false;
      draw();
    },
  };

  function header() {
    return element("div", { class: "s4s-head" },
      element("h2", {}, t("title")),
      button("pi-refresh", "", {
        class: "s4s-button s4s-bare", title: t("refresh"), "aria-label": t("refresh"), "data-key": "refresh",
        onclick: () => { loadSolvers(); watch(); },
      }),
      button(state.starting ? "pi-spin pi-spinner" : "pi-external-link", t(state.starting ? "starting" : "trainer"), {
        class: "s4s-button", title: t("trainerHelp"), "data-key": "trainer", disabled: state.starting, onclick: actions.panel,
      }));
  }

  function search() {
    if ((state.solvers?.length ?? 0) < SEARCH_FROM) return null;
    return element("input", {
      class: "s4s-search", type: "search", placeholder: t("search"), "aria-label": t("search"), value: state.typed,
      "data-key": "search",
      oninput: (event) => { state.typed = event.target.value; draw(); },
    });
  }

  function card(solver) {
    const nfe = solver.error ? null : shownNfe(solver);
    const table = state.tables.get(`${nfe}/${solver.file}`) ?? null;
    return solverCard(solver, { nfe, table, open: state.open.has(solver.file) }, actions);
  }

  function solverList() {
    if (state.solvers === null) return element("p", { class: "s4s-faint" }, t("loading"));
    if (state.failure) return element("p", { class: "s4s-error" }, clean(state.failure, 400));
    if (state.solvers.length === 0)
      return element("p", { class: "s4s-faint s4s-empty" }, t("none", { folder: clean(state.folder, 300) }));
    const found = state.solvers.filter((solver) => matches(solver, state.typed));
    if (found.length === 0) return element("p", { class: "s4s-faint" }, t("noMatch"));
    const rest = found.length - FILES_SHOWN;
    const more = rest > 0 ? [element("p", { class: "s4s-faint" }, t("more", { count: rest }))] : [];
    return [...found.slice(0, FILES_SHOWN).map(card), ...more];
  }

  function draw() {
    if (!container || held) return;
    const jobs = shownJobs(state.jobs, state.dismissed);
    const training = jobs.length ? [element("h3", {}, t("trainings")), jobs.map((job) => jobCard(job, actions))] : [];
    const files = [jobs.length ? element("h3", {}, t("files")) : null, search(), solverList()];
    keepFocus(container, () => {
      container.replaceChildren(...[header(), training, files].flat(2).filter(Boolean));
    });
  }

  // Do not redraw while a button is pressed: a click must start and end on the same element.
  const press = () => { held = true; };
  const release = () => setTimeout(() => { if (held) { held = false; draw(); } });

  return {
    // ComfyUI may call this several times while the tab opens.
    render(place) {
      if (container === place) return draw();
      container = place;
      container.classList.add("s4s-sidebar");
      container.addEventListener("pointerdown", press);
      for (const end of ENDS) window.addEventListener(end, release);
      draw();
      loadSolvers();
      watch();
    },
    destroy() {
      clearTimeout(timer);
      for (const end of ENDS) window.removeEventListener(end, release);
      container = null;
      held = false;
    },
    training(view) {
      const before = state.jobs.find((job) => job.id === view.id);
      state.jobs = withJob(state.jobs, view);
      if (isRunning(view)) state.dismissed.delete(view.id);
      if (before && isRunning(before) && !isRunning(view)) loadSolvers();
      draw();
    },
  };
}
