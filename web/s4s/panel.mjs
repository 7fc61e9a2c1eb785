// Opening the trainer panel, a page of its own on the machine that runs ComfyUI.

const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]);

/** The panel's address if it is one that a panel can have, else null. */
export function panelAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" && LOOPBACK.has(url.hostname) ? url.href : null;
  } catch {
    return null;
  }
}

export const isLocal = (hostname) => LOOPBACK.has(hostname);

/** Start the panel if need be and show it in a tab of its own; where gradio is missing, `agree` asks
 * before it is downloaded. The tab is opened right after a click, because browsers open none for a
 * page that waited first. {url, shown}, or null where nobody agreed: shown is false where the
 * browser opened none, or where ComfyUI runs on another machine than the browser. */
export async function openPanel(server, { hostname, open, t, agree }) {
  const { url: running, ready } = await server.panel();
  const install = !running && !ready;
  if (install && !(await agree())) return null;
  const tab = isLocal(hostname) ? open() : null;
  if (tab) {
    tab.opener = null;
    tab.document.title = "S4S";
    tab.document.body.textContent = t(install ? "installing" : "starting");
  }
  try {
    const url = panelAddress(running ?? (await server.startPanel(install)));
    if (!url) throw new Error("The trainer panel gave no address.");
    tab?.location.replace(url);
    return { url, shown: Boolean(tab) };
  } catch (error) {
    tab?.close();
    throw error;
  }
}
