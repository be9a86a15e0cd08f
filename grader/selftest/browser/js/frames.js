// Returns the boxes that scroll, but not for somebody with a keyboard and a screen reader.
const found = [];
for (const e of document.body.querySelectorAll("*")) {
  const style = getComputedStyle(e);
  const scrolls = (overflow) => ["auto", "scroll"].includes(overflow);
  const moves = (scrolls(style.overflowX) && e.scrollWidth > e.clientWidth + 1)
    || (scrolls(style.overflowY) && e.scrollHeight > e.clientHeight + 1);
  if (!moves || !e.checkVisibility({ contentVisibilityAuto: true })) continue;
  const name = e.getAttribute("aria-label") ?? e.getAttribute("aria-labelledby");
  if (e.getAttribute("tabindex") !== "0" || e.getAttribute("role") !== "region" || !name?.trim())
    found.push(`scrolls, but has no tabindex, role and name: ${e.outerHTML.slice(0, 100)}`);
}
return found;
