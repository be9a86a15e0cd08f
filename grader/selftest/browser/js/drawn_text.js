// Returns the words of drawings that reach beyond the drawing.
const found = [];
for (const text of document.querySelectorAll("svg text")) {
  if (!text.checkVisibility({ contentVisibilityAuto: true })) continue;
  const inner = text.getBBox(), outer = text.ownerSVGElement.viewBox.baseVal;
  if (inner.x < outer.x - 1 || inner.x + inner.width > outer.x + outer.width + 1
      || inner.y + inner.height > outer.y + outer.height + 1)
    found.push(`“${text.textContent.slice(0, 60)}” ends at ${inner.x + inner.width} of a drawing of`
               + ` ${outer.width}`);
}
return found;
