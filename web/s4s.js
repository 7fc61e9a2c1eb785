// S4S in ComfyUI's front end: the sidebar tab, and events from the server. ComfyUI imports this file
// automatically; everything else is in s4s/*.mjs, which it does not import.

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

const MODULES = ["cards", "client", "dom", "format", "graph", "panel", "plot", "sidebar", "steps", "texts"];

// ComfyUI makes browsers revalidate .js files but not .mjs files, so an update would mix old and new
// files. Revalidate them here, before the first import.
const revalidate = (name) => fetch(new URL(`./s4s/${name}.mjs`, import.meta.url), { cache: "no-cache" });
await Promise.allSettled(MODULES.map(revalidate));

const { client } = await import("./s4s/client.mjs");
const { clean } = await import("./s4s/format.mjs");
const { carryOut, describe, plan } = await import("./s4s/graph.mjs");
const { openPanel } = await import("./s4s/panel.mjs");
const { sidebar } = await import("./s4s/sidebar.mjs");
const { deciding, narrow, withSteps } = await import("./s4s/steps.mjs");
const { translator } = await import("./s4s/texts.mjs");

async function words() {
  const locale = app.extensionManager.setting.get("Comfy.Locale");
  const response = await api.fetchApi("/i18n");
  return translator(response.ok ? await response.json() : {}, locale);
}

function toast(severity, summary, detail, life = 10_000) {
  app.extensionManager.toast.add({ severity, summary, detail: clean(detail, 400), life });
}

/** Return the selected node, or null unless exactly one is selected. */
function selectedNode() {
  const nodes = Object.values(app.canvas.selected_nodes ?? {});
  return nodes.length === 1 ? nodes[0] : null;
}

/** Return the centre of the visible canvas in graph coordinates. */
function centre() {
  const [x, y, width, height] = app.canvas.ds.visible_area;
  return [x + width / 2 - 300, y + height / 2 - 100];
}

function addSolver(solver, nfe) {
  const selected = selectedNode();
  const todo = plan(describe(selected), solver.file, nfe);
  const host = {
    graph: app.canvas.graph ?? app.graph, canvas: app.canvas, centre: centre(),
    createNode: (type) => window.LiteGraph.createNode(type),
  };
  const added = carryOut(todo, selected, host);
  if (added.length) app.canvas.selectItems?.(added);
}

/** Keeps the step counts that nodes offer in line with the solvers connected to them. */
const steps = {
  solvers: [],
  offer: (move) => narrow((app.canvas?.graph ?? app.graph)?.nodes ?? [], steps.solvers, move),
  listed(solvers) {
    steps.solvers = solvers;
    steps.offer(false);
  },
  watch(node) {
    const changed = () => steps.offer(!app.configuringGraph);
    if (withSteps.has(node.comfyClass)) after(node, "onConnectionsChange", changed);
    node.widgets?.filter(({ name }) => name === deciding[node.comfyClass])
      .forEach((widget) => after(widget, "callback", changed));
  },
};

/** Call `act` after each call of a method. */
function after(object, name, act) {
  const original = object[name];
  object[name] = function (...given) {
    const result = original?.apply(this, given);
    act();
    return result;
  };
}

function style() {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL("./s4s.css", import.meta.url).href;
  document.head.append(link);
}

const server = client((path, options) => api.fetchApi(path, options));

app.registerExtension({
  name: "S4S",
  nodeCreated: steps.watch,
  afterConfigureGraph: () => steps.offer(false),
  async setup() {
    style();
    const t = await words();
    server.solvers().then(({ solvers }) => steps.listed(solvers), (error) => console.warn("S4S:", error.message));
    const complain = (text) => toast("error", "S4S", text);
    const attempt = (act) => async (...given) => {
      try {
        return await act(...given);
      } catch (error) {
        return complain(error.message);
      }
    };

    const tab = sidebar(server, {
      t,
      complain,
      listed: steps.listed,
      url: (path) => api.apiURL(path),
      add: attempt(addSolver),
      openPanel: attempt(async () => {
        const agree = () => app.extensionManager.dialog.confirm({ title: t("trainer"), message: t("installGradio") });
        const where = { hostname: location.hostname, open: () => window.open("", "_blank"), t, agree };
        const opened = await openPanel(server, where);
        if (opened && !opened.shown) toast("info", t("trainer"), t("trainerAt", { url: opened.url }), 60_000);
      }),
    });

    app.extensionManager.registerSidebarTab({
      id: "s4s",
      icon: "pi pi-chart-line",
      title: "S4S",
      tooltip: t("tooltip"),
      type: "custom",
      render: tab.render,
      destroy: tab.destroy,
    });
    api.addEventListener("s4s.training", ({ detail }) => tab.training(detail));
    api.addEventListener("s4s.warning", ({ detail }) => toast("warn", t("warning"), detail.text, 15_000));
  },
});
