// Returns every visible text with its colour, its size, and the layers of colour behind it, the
// lowest first: {found: [{text, where, colour, alpha, size, weight, layers: [[colour, alpha], …]},
// …], canvas: colour}. Each text is looked at in several places.
// The window has to be as high as the page: only what is in the window has anything behind it.
const kept = (compute) => {  // the same answer for the same element, computed once
  const answers = new Map();
  return (e) => answers.get(e) ?? (answers.set(e, compute(e)), answers.get(e));
};
const opacity = kept(
  (e) => Number(getComputedStyle(e).opacity) * (e.parentElement ? opacity(e.parentElement) : 1));
const said = (e) => e.tagName.toLowerCase() + [...e.classList].map((c) => "." + c).join("");

const layersOf = kept((element) => {
  const style = getComputedStyle(element);
  const seen = opacity(element);
  if (!(element instanceof SVGElement) || element.tagName === "svg") {
    const image = style.backgroundImage === "none" ? [] : [["image " + style.backgroundImage, 1]];
    return [[style.backgroundColor, seen], ...image];
  }
  if (!(element instanceof SVGGeometryElement)) return [];
  const layers = style.fill === "none" ? [] : [[style.fill, seen * style.fillOpacity]];
  // A line as thick as letters are high is a ground; a thin one is a line.
  if (style.stroke !== "none" && parseFloat(style.strokeWidth) >= 6)
    layers.push([style.stroke, seen * style.strokeOpacity]);
  return layers;
});

function behind(element, x, y) {
  const there = document.elementsFromPoint(x, y);
  let from = there.indexOf(element);
  let below = there.slice(from + 1);
  if (from < 0) {  // scrolled out of its frame, or drawn outside of it
    below = [];
    for (let e = element.parentElement; e; e = e.parentElement) below.push(e);
  }
  // What an element of SVG is filled with is its letters.
  const own = element instanceof SVGElement ? below : [element, ...below];
  return own.reverse().flatMap(layersOf);
}

const found = [];
function note(element, pseudo, text, boxes) {
  const style = getComputedStyle(element, pseudo);
  const inSvg = element instanceof SVGElement;
  const colour = inSvg ? style.fill : style.color;
  const alpha = opacity(element) * (inSvg ? Number(style.fillOpacity) : 1);
  const [size, weight] = [parseFloat(style.fontSize), Number(style.fontWeight)];
  for (const box of boxes) {
    for (const x of [box.left + 1, box.right - 1]) {
      const layers = behind(element, x, (box.top + box.bottom) / 2);
      found.push({ text: text.trim().slice(0, 60), where: said(element), colour, alpha, layers,
                   size, weight });
    }
  }
}

const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const parent = node.parentElement;
  if (!node.data.trim() || parent.closest("style, script, title")) continue;
  if (!parent.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const boxes = [...range.getClientRects()].filter((box) => box.width > 1 && box.height > 1);
  note(parent, null, node.data, boxes.slice(0, 2));
}
for (const element of document.body.querySelectorAll("*")) {
  if (!element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
  for (const pseudo of ["::before", "::after"]) {
    const content = getComputedStyle(element, pseudo).content;
    if (/^"\s*\S/.test(content)) note(element, pseudo, content, [element.getBoundingClientRect()]);
  }
}
// What is behind a page that paints no ground.
const probe = document.body.appendChild(document.createElement("p"));
probe.style.backgroundColor = "Canvas";
const canvas = getComputedStyle(probe).backgroundColor;
probe.remove();
return { found, canvas };
