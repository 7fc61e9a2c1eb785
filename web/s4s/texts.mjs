// The sidebar's words: locales/*/main.json, which ComfyUI offers at /i18n.

/** A function (key, values) -> text in the language `locale`, else English, else the key itself.
 * `bundles` is what /i18n answers; {name} in a text stands for values.name. */
export function translator(bundles, locale) {
  const words = { ...bundles?.en?.s4s, ...bundles?.[locale]?.s4s };
  return (key, values = {}) =>
    (words[key] ?? key).replace(/\{(\w+)\}/g, (all, name) => String(values[name] ?? all));
}
