import assert from "node:assert/strict";
import { test } from "node:test";

import { client, thumbnailPath } from "../../../web/s4s/client.mjs";
import { openPanel, panelAddress } from "../../../web/s4s/panel.mjs";
import { translator } from "../../../web/s4s/texts.mjs";

const answering = (status, body, seen = []) => async (path, options = {}) => {
  seen.push([path, options]);
  return new Response(typeof body === "string" ? body : JSON.stringify(body), { status });
};

test("names of files are escaped in addresses", async () => {
  const seen = [];
  await client(answering(200, {}, seen)).table("a&nfe=9/../x y.safetensors", 5);
  assert.equal(seen[0][0], "/s4s/table?file=a%26nfe%3D9%2F..%2Fx%20y.safetensors&nfe=5");
  assert.equal(thumbnailPath({ file: "a b", thumbnail: "https://example.org", sha256: "0123456789" }),
    "/s4s/thumbnail?file=a%20b&v=01234567");
  assert.equal(thumbnailPath({ file: "a b", thumbnail: null }), null);
});

test("changes are POST requests with the header that the routes require", async () => {
  const seen = [];
  const server = client(answering(200, { url: "http://127.0.0.1:1/" }, seen));
  await server.cancel("a1");
  await server.startPanel(true);
  assert.deepEqual(seen.map(([path]) => path), ["/s4s/jobs/cancel", "/s4s/panel"]);
  for (const [, options] of seen) {
    assert.equal(options.method, "POST");
    assert.equal(options.headers["X-S4S"], "1");
  }
  assert.deepEqual(seen.map(([, { body }]) => body), ['{"id":"a1"}', '{"install":true}']);
});

test("an error is the server's message, or the status", async () => {
  await assert.rejects(client(answering(404, { error: "There is no job a1." })).cancel("a1"), /There is no job a1\./);
  await assert.rejects(client(answering(502, "<html>")).solvers(), /HTTP 502/);
  await assert.rejects(client(answering(200, "not json")).solvers(), /HTTP 200/);
});

test("only loopback addresses are accepted as a panel", () => {
  assert.equal(panelAddress("http://127.0.0.1:7000/"), "http://127.0.0.1:7000/");
  assert.equal(panelAddress("http://localhost:7000"), "http://localhost:7000/");
  for (const bad of ["javascript:alert(1)", "http://127.0.0.1.example.org/", "https://example.org", "", null, undefined])
    assert.equal(panelAddress(bad), null);
});

function fakeTab() {
  const tab = { closed: false, document: { body: {} }, opener: "page" };
  tab.location = { replace: (url) => { tab.url = url; } };
  tab.close = () => { tab.closed = true; };
  return tab;
}
const panel = (running, started, ready = true) =>
  ({ panel: async () => ({ url: running, ready }), startPanel: async (install) => started(install) });
const somewhere = (given) =>
  ({ hostname: "localhost", open: fakeTab, t: (key) => key, agree: () => assert.fail("asked"), ...given });

test("the panel opens in a tab without access to its opener", async () => {
  const tab = fakeTab();
  const where = somewhere({ hostname: "127.0.0.1", open: () => tab });
  const shown = await openPanel(panel(null, () => "http://127.0.0.1:9/"), where);
  assert.deepEqual(shown, { url: "http://127.0.0.1:9/", shown: true });
  assert.deepEqual([tab.url, tab.opener, tab.document.body.textContent], ["http://127.0.0.1:9/", null, "starting"]);
});

test("a running panel is not started again, and from another machine no tab is opened", async () => {
  const started = () => assert.fail("started");
  for (const ready of [true, false])
    assert.equal((await openPanel(panel("http://127.0.0.1:9/", started, ready), somewhere())).url, "http://127.0.0.1:9/");
  const where = somewhere({ hostname: "studio.lan", open: () => assert.fail("opened") });
  assert.equal((await openPanel(panel("http://127.0.0.1:9/", null), where)).shown, false);
});

test("a panel that does not start closes the tab", async () => {
  const tab = fakeTab();
  const where = somewhere({ open: () => tab });
  await assert.rejects(openPanel(panel(null, () => { throw new Error("no gradio"); }), where), /no gradio/);
  assert.ok(tab.closed);
});

test("gradio is downloaded only if the user agrees", async () => {
  const asked = [];
  const server = panel(null, (install) => { asked.push(install); return "http://127.0.0.1:9/"; }, false);
  const refused = somewhere({ open: () => assert.fail("opened"), agree: async () => null });
  assert.equal(await openPanel(server, refused), null);
  assert.deepEqual(asked, []);
  const tab = fakeTab();
  assert.ok((await openPanel(server, somewhere({ open: () => tab, agree: async () => true }))).shown);
  assert.deepEqual([asked, tab.document.body.textContent], [[true], "installing"]);
});

test("texts fall back to English, then to their key", () => {
  const bundles = { en: { s4s: { a: "one {x}", b: "two" } }, zh: { s4s: { a: "一 {x}" } } };
  const t = translator(bundles, "zh");
  assert.deepEqual([t("a", { x: 3 }), t("b"), t("c"), t("a")], ["一 3", "two", "c", "一 {x}"]);
  assert.equal(translator(undefined, "en")("a"), "a");
  assert.equal(translator(bundles, "xx")("a", { x: "{b}" }), "one {b}");
});
