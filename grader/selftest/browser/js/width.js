// Returns what is wider than its place: the document, boxes beyond its edges, text beyond its box.
const wide = document.scrollingElement.clientWidth;
const found = [];
if (document.scrollingElement.scrollWidth > wide)
  found.push(`the document is ${document.scrollingElement.scrollWidth} px wide, the window ${wide}`);

const said = (e) => e.tagName.toLowerCase() + [...e.classList].map((c) => "." + c).join("")
  + ` “${e.textContent.trim().slice(0, 40)}”`;
const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
function inFrame(element) {
  for (let e = element.parentElement; e && e !== document.body; e = e.parentElement)
    if (scrolls(e)) return true;
  return false;
}

for (const element of document.body.querySelectorAll("*")) {
  if (!element.checkVisibility({ contentVisibilityAuto: true })) continue;
  if (element instanceof SVGElement && element.tagName !== "svg") continue;
  const box = element.getBoundingClientRect();
  if (!inFrame(element) && box.width && (box.right > wide + 1 || box.left < -1))
    found.push(`${said(element)} reaches from ${box.left} to ${box.right} px, of ${wide}`);
  // Words for screen readers alone stand in a box of one pixel.
  if (element.clientWidth > 1 && !scrolls(element) && element.tagName !== "INPUT"
      && element.scrollWidth > element.clientWidth + 1)
    found.push(`${said(element)}: its text is ${element.scrollWidth} px wide, its box`
               + ` ${element.clientWidth}`);
}
return found;
