// Opens everything. Notes from now on what gets the focus, and how it looks then. Returns what
// can be reached by keyboard, in the order of the page.
const all = [...document.querySelectorAll("*")];
const said = (e) => e.tagName.toLowerCase() + [...e.classList].map((c) => "." + c).join("")
  + ` “${(e.textContent || e.id).trim().slice(0, 40)}” (element ${all.indexOf(e)})`;
const visible = (e) => e.checkVisibility(
  { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
const look = (e) => {
  const style = getComputedStyle(e);
  const outline = style.outlineStyle === "none" ? "0px" : style.outlineWidth;
  return { outline: parseFloat(outline), colour: style.outlineColor, shadow: style.boxShadow };
};
// A frame that scrolls also cuts off the outline of what is in it.
function cutOff(e) {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  const reach = parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth);
  for (let frame = e.parentElement; frame !== document.body; frame = frame.parentElement) {
    if (getComputedStyle(frame).overflowX === "visible") continue;
    const edge = frame.getBoundingClientRect();
    if (box.left - reach < edge.left || box.right + reach > edge.right) return true;
  }
  return false;
}
const grounds = (e) => (e ? [...grounds(e.parentElement), [getComputedStyle(e).backgroundColor, 1]]
                          : []);
document.querySelectorAll("details").forEach((details) => (details.open = true));
const candidates = all.filter((e) => e.matches(
  "a[href], summary, input, button, select, textarea, [contenteditable], [tabindex]")
  && !e.disabled && e.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true }));
const looks = new Map(candidates.map((e) => [e, look(e)]));
window.lockstepFocused = [];
document.addEventListener("focusin", ({ target }) => {
  const box = target.getBoundingClientRect();
  const shown = visible(target) && box.width > 1 && box.height > 1
    && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const [before, now] = [looks.get(target), look(target)];
  const marked = before !== undefined && ((now.outline >= 2 && before.outline !== now.outline)
                                          || before.shadow !== now.shadow);
  window.lockstepFocused.push({ said: said(target), shown, marked, outline: now.outline, cut: cutOff(target),
                                colour: now.colour, layers: grounds(target.parentElement) });
});
document.activeElement.blur();
scrollTo(0, 0);
return candidates.map(said);
