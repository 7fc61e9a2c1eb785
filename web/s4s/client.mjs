// The server's routes (nodes/routes.py) as functions. `fetchApi` is ComfyUI's.

const PROTECTED = { "X-S4S": "1", "Content-Type": "application/json" };

async function answer(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // A proxy's page, or nothing: only the status is left to report.
  }
  if (response.ok && body !== null) return body;
  throw new Error(typeof body?.error === "string" ? body.error : `HTTP ${response.status}`);
}

export function client(fetchApi) {
  const get = async (path) => answer(await fetchApi(path));
  const post = async (path, body = {}) =>
    answer(await fetchApi(path, { method: "POST", headers: PROTECTED, body: JSON.stringify(body) }));
  return {
    solvers: () => get("/s4s/solvers"),
    table: (file, nfe) => get(`/s4s/table?file=${encodeURIComponent(file)}&nfe=${nfe}`),
    jobs: async () => (await get("/s4s/jobs")).jobs ?? [],
    cancel: (id) => post("/s4s/jobs/cancel", { id }),
    panel: () => get("/s4s/panel"),
    startPanel: async (install) => (await post("/s4s/panel", { install })).url,
  };
}

/** Return the route of a file's thumbnail, never an address from the file. The hash makes browsers
 * load it again when the file changes. */
export function thumbnailPath(solver) {
  const version = encodeURIComponent(String(solver.sha256).slice(0, 8));
  return solver.thumbnail ? `/s4s/thumbnail?file=${encodeURIComponent(solver.file)}&v=${version}` : null;
}
