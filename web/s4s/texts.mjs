// The sidebar's texts: locales/*/main.json, which ComfyUI serves at /i18n.

/** Return a function (key, values) -> text in the language `locale`, else in English, else the key.
 * `bundles` is the response of /i18n; {name} in a text is replaced by values.name. */
export function translator(bundles, locale) {
  const words = { ...bundles?.en?.s4s, ...bundles?.[locale]?.s4s };
  return (key, values = {}) =>
    (words[key] ?? key).replace(/\{(\w+)\}/g, (all, name) => String(values[name] ?? all));
}
