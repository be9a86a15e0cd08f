// Returns the addresses in the page that lead out of its folder, or that the page loads by itself.
const found = [];
const loads = ["src", "srcset", "data", "poster", "background", "action", "formaction", "ping",
               "manifest", "xlink:href", "archive", "codebase"];
const said = (e) => e.outerHTML.slice(0, 80);
for (const element of document.querySelectorAll("*")) {
  for (const name of loads)
    if (element.hasAttribute(name)) found.push(`${name}: ${said(element)}`);
  const href = element.getAttribute("href");
  if (href !== null && element.tagName !== "A") found.push(`href: ${said(element)}`);
  // A link may lead to a place of this page, or to a file in or below its folder.
  if (href !== null && !/^(#|[\w%-][\w%.\/-]*(#|$))/.test(href)) found.push(`href: ${said(element)}`);
  if (/(^|\/)\.\.(\/|$)/.test(href ?? "")) found.push(`href: ${said(element)}`);
}
const styles = [...document.querySelectorAll("style")].map((style) => style.textContent);
const own = [...document.querySelectorAll("[style]")].map((e) => e.getAttribute("style"));
for (const css of [...styles, ...own])
  for (const address of css.match(/@import[^;]*|url\((?!["']?#)[^)]*\)|image-set\([^)]*\)/g) ?? [])
    found.push(`style: ${address}`);
const policy = document.querySelector("meta[http-equiv=Content-Security-Policy]")?.content ?? "";
for (const rule of ["default-src 'none'", "base-uri 'none'", "form-action 'none'"])
  if (!policy.split(/;\s*/).includes(rule)) found.push(`the policy lacks ${rule}: “${policy}”`);
if (/script|connect|img|\*/.test(policy)) found.push(`the policy allows more: “${policy}”`);
return found;
