// The parts of a browser's document that the sidebar uses, for node's test runner.

class FakeNode {
  constructor(tag) {
    this.tag = tag;
    this.children = [];
    this.attributes = {};
    this.listeners = {};
    this.parent = null;
    this.scrollTop = 0;
    this.classList = { add: (name) => this.setAttribute("class", [this.attributes.class, name].filter(Boolean).join(" ")) };
  }
  get dataset() {
    return { key: this.attributes["data-key"] };
  }
  get textContent() {
    return this.tag === "#text" ? this.text : this.children.map((child) => child.textContent).join("");
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener(name, listener) {
    (this.listeners[name] ??= []).push(listener);
  }
  append(...children) {
    for (const child of children) {
      child.parent = this;
      this.children.push(child);
    }
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  contains(other) {
    return other === this || this.children.some((child) => child.contains(other));
  }
  all() {
    return this.children.flatMap((child) => [child, ...child.all()]);
  }
  querySelectorAll(selector) {
    if (selector === "[data-key]") return this.all().filter((one) => one.attributes["data-key"]);
    const name = selector.slice(1);
    return this.all().filter((one) => (one.attributes.class ?? "").split(" ").includes(name));
  }
  click() {
    if (!("disabled" in this.attributes)) for (const listener of this.listeners.click ?? []) listener({ target: this });
  }
  focus() {
    document.activeElement = this;
  }
  setSelectionRange() {}
}

export function installDom() {
  const make = (tag) => new FakeNode(tag);
  globalThis.document = {
    activeElement: null,
    createElement: make,
    createElementNS: (space, tag) => make(tag),
    createTextNode: (text) => Object.assign(make("#text"), { text }),
  };
  const listeners = {};
  globalThis.window = {
    listeners,
    addEventListener: (name, act) => (listeners[name] ??= []).push(act),
    removeEventListener: (name, act) => { listeners[name] = listeners[name].filter((one) => one !== act); },
  };
  return make("div");
}

export const byKey = (root, key) => root.all().find((one) => one.attributes["data-key"] === key);
export const byClass = (root, name) => root.querySelectorAll(`.${name}`);
