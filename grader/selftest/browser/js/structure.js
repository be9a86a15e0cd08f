// Returns what somebody who does not see the page would miss.
const found = [];
const said = (e) => e.outerHTML.slice(0, 80);
const one = (selector) => {
  const count = document.querySelectorAll(selector).length;
  if (count !== 1) found.push(`${count} × ${selector}`);
};
if (!/^[a-z]{2}/.test(document.documentElement.lang)) found.push("the page names no language");
if (!document.title.trim()) found.push("the page has no title");
["h1", "main", "header", "footer", "meta[name=viewport]"].forEach(one);

let before = 0;
for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
  const level = Number(heading.tagName[1]);
  if (level > before + 1) found.push(`after h${before} comes ${said(heading)}`);
  if (!heading.textContent.trim()) found.push(`an empty heading: ${said(heading)}`);
  before = level;
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at)))
  found.push(`two elements have the id ${id}`);
for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls"])
  for (const element of document.querySelectorAll(`[${name}]`))
    for (const id of element.getAttribute(name).split(/\s+/))
      if (!ids.includes(id)) found.push(`${name} names nothing: ${said(element)}`);
for (const link of document.querySelectorAll('a[href^="#"]'))
  if (!ids.includes(decodeURIComponent(link.hash.slice(1))))
    found.push(`a link to nothing: ${said(link)}`);

for (const table of document.querySelectorAll("table")) {
  if (!table.caption?.textContent.trim()) found.push(`a table without a caption: ${said(table)}`);
  const heads = [...table.querySelectorAll("th")];
  if (!heads.some((head) => head.scope === "col"))
    found.push(`a table without heads of columns: ${said(table)}`);
  for (const head of heads)
    if (!["col", "row", "colgroup", "rowgroup"].includes(head.scope))
      found.push(`a head without a scope: ${said(head)}`);
  const columns = (row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
  if (new Set([...table.rows].map(columns)).size > 1)
    found.push(`rows of different lengths: ${said(table)}`);
}
for (const details of document.querySelectorAll("details"))
  if (details.firstElementChild?.tagName !== "SUMMARY")
    found.push(`details without a summary: ${said(details)}`);
for (const image of document.querySelectorAll("img:not([alt]), svg:not([role=img])"))
  found.push(`an image without a role or a name: ${said(image)}`);
for (const element of document.querySelectorAll("[tabindex]"))
  if (element.tabIndex > 0) found.push(`a tabindex changes the order: ${said(element)}`);
return found;
