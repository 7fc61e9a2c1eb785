// Elements without HTML: text becomes text nodes only, so untrusted text stays text.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "path", "circle", "rect", "line", "polyline", "text", "title"]);

/** Create an element. Attributes starting with "on" are listeners; null, undefined and false are left
 * out, true is an empty attribute. Children that are not elements become text. */
export function element(tag, attributes = {}, ...children) {
  const node = SHAPES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat())
    if (child !== null && child !== undefined && child !== false)
      node.append(typeof child === "object" ? child : document.createTextNode(String(child)));
  return node;
}

/** Create a button with one of ComfyUI's icons ("pi-refresh") before its text. */
export function button(icon, text, attributes = {}) {
  const content = [icon && element("i", { class: `pi ${icon}`, "aria-hidden": "true" }), text];
  return element("button", { type: "button", ...attributes }, content);
}
