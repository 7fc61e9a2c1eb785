"""The page's own style, in Gradio's colour variables, so that it suits light, dark and a host."""

CSS = """
#s4s-tick { display: none !important; }
#s4s-panel { max-width: 1400px; margin: 0 auto; }
#s4s-panel .html-container { padding: 0 !important; }
#s4s-panel .block:has(.prose:empty) { display: none; }
.s4s-head { display: flex; align-items: baseline; gap: .8rem; flex-wrap: wrap; }
.s4s-head h2 { margin: 0 !important; font-size: 1.3rem; color: var(--body-text-color); }
.s4s-faint { color: var(--body-text-color-subdued) !important; }
.s4s-card {
  border: 1px solid var(--border-color-primary); border-radius: 10px; padding: 1rem;
  background: var(--background-fill-primary); color: var(--body-text-color);
}
.s4s-card h3 { margin: 0 0 .5rem !important; font-size: 1.05rem; color: var(--body-text-color); }
.s4s-bar {
  height: 12px; border-radius: 6px; margin: .7rem 0 .5rem; overflow: hidden;
  background: var(--border-color-primary);
}
.s4s-bar > div { height: 100%; border-radius: 6px; background: #8b5cf6; transition: width .4s; }
.s4s-bar.s4s-done > div { background: #10b981; }
.s4s-bar.s4s-failed > div { background: #ef4444; }
.s4s-list .wrap { flex-direction: column; }
.s4s-list label { width: 100%; overflow-wrap: anywhere; }
.s4s-chip {
  display: inline-block; padding: .1rem .6rem; border-radius: 99px; font-size: .8rem;
  font-weight: 600; color: #fff !important; background: #64748b;
}
.s4s-chip.s4s-running { background: #7c3aed; }
.s4s-chip.s4s-done { background: #047857; }
.s4s-chip.s4s-failed, .s4s-chip.s4s-interrupted { background: #b91c1c; }
.s4s-facts { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; }
.s4s-facts dt { color: var(--body-text-color-subdued) !important; margin: 0; }
.s4s-facts dd { margin: 0; overflow-wrap: anywhere; }
.s4s-note {
  border-left: 4px solid #f59e0b; padding: .5rem .8rem; margin-top: .6rem; border-radius: 4px;
  background: var(--background-fill-secondary); color: var(--body-text-color);
}
.s4s-note.s4s-bad { border-color: #ef4444; }
.s4s-empty {
  padding: 2.5rem 1rem; text-align: center; color: var(--body-text-color-subdued) !important;
}
.s4s-charts {
  display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(360px, 1fr));
}
.s4s-chart { width: 100%; height: auto; font-size: 12px; }
.s4s-chart text { fill: var(--body-text-color); }
.s4s-chart text.s4s-faint { fill: var(--body-text-color-subdued); }
.s4s-chart .s4s-title { font-size: 13px; font-weight: 600; }
.s4s-chart .s4s-rule { stroke: var(--border-color-primary); stroke-width: 1; }
.s4s-log {
  display: flex; flex-direction: column-reverse; max-height: 260px; overflow: auto; margin: 0;
  padding: .7rem .9rem; border-radius: 8px; font: 12px/1.5 ui-monospace, monospace;
  background: var(--background-fill-secondary); color: var(--body-text-color);
}
.s4s-log code { white-space: pre-wrap; overflow-wrap: anywhere; background: none; padding: 0; }
.s4s-sheet { overflow-x: auto; }
.s4s-sheet img { border-radius: 8px; max-width: 100%; margin: 0; }
.s4s-scores { border-collapse: collapse; width: 100%; margin: .6rem 0 0 !important; }
.s4s-scores, .s4s-scores tr { border: 0 !important; }
.s4s-scores th, .s4s-scores td {
  padding: .25rem .6rem !important; text-align: right !important; border: 0 !important;
  border-top: 1px solid var(--border-color-primary) !important; color: var(--body-text-color);
}
.s4s-scores th { color: var(--body-text-color-subdued) !important; font-weight: 500; }
.s4s-solver { display: flex; gap: 1.2rem; align-items: flex-start; }
.s4s-solver > img { width: 144px; border-radius: 10px; margin: 0; image-rendering: auto; }
.s4s-solver > div { flex: 1; min-width: 0; }
.s4s-button {
  display: inline-block; padding: .45rem 1rem !important; border-radius: 8px; font-weight: 600;
  background: #7c3aed; color: #fff !important; text-decoration: none !important;
}
.s4s-slider { position: relative; max-width: 768px; margin: 0 auto; --split: 50%; }
.s4s-slider img { display: block; width: 100%; margin: 0; border-radius: 10px; }
.s4s-slider img + img {
  position: absolute; inset: 0; clip-path: inset(0 0 0 var(--split));
}
.s4s-slider .s4s-handle {
  position: absolute; top: 0; bottom: 0; left: var(--split); width: 3px; margin-left: -1.5px;
  background: #fff; box-shadow: 0 0 4px #0008; pointer-events: none;
}
.s4s-slider .s4s-handle::after {
  content: "\\2194"; position: absolute; top: 50%; left: 50%; width: 34px; height: 34px;
  margin: -17px; border-radius: 50%; background: #fff; color: #333; text-align: center;
  font: 700 20px/34px system-ui; box-shadow: 0 0 4px #0008;
}
.s4s-slider input {
  position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0; cursor: ew-resize;
}
.s4s-slider span {
  position: absolute; bottom: 10px; padding: .1rem .6rem; border-radius: 6px;
  color: #fff !important; background: #000a; font-size: .85rem; pointer-events: none;
}
.s4s-three { display: grid; gap: 1rem; grid-template-columns: repeat(3, 1fr); margin-top: 1rem; }
.s4s-three figure { margin: 0; text-align: center; }
.s4s-three img { width: 100%; border-radius: 10px; margin: 0; }
.s4s-three figcaption { margin-top: .4rem; color: var(--body-text-color); }
"""

TICK = """
() => {
  clearInterval(window.s4sTick);
  window.s4sTick = setInterval(() => {
    const panel = document.querySelector("#s4s-panel");
    const seen = panel && panel.offsetParent !== null && document.visibilityState === "visible";
    const button = document.querySelector("#s4s-tick");
    if (seen && button) button.click();
  }, 1500);
}
"""
"""Looks again, by a hidden button, while the panel is on the screen: alike in every Gradio."""
