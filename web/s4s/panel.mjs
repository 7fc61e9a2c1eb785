// Opens the trainer panel, a separate page on the machine that runs ComfyUI.

const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]);

/** Return an address if it can be the panel's, otherwise null. */
export function panelAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" && LOOPBACK.has(url.hostname) ? url.href : null;
  } catch {
    return null;
  }
}

export const isLocal = (hostname) => LOOPBACK.has(hostname);

/** Start the panel if needed and show it in a new tab; if gradio is missing, `agree` asks before the
 * download. The tab is opened right after the click, because browsers block tabs that open later.
 * Return {url, shown}, or null if the user declined. shown is false if the browser blocked the tab or
 * ComfyUI runs on another machine. */
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
