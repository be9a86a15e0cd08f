// Returns every element with its attributes, in the order of the page. Left out are the values of
// attributes that hold text for people.
const texts = ["aria-label", "title", "alt"];
const written = (a) => (texts.includes(a.name) ? a.name : `${a.name}=${a.value}`);
// How wide and high a drawing is, and where its parts stand, depends on the words in it.
const inDrawing = (e) => e instanceof SVGElement;
return [...document.querySelectorAll("*")].map((e) =>
  [e.tagName, ...[...e.attributes].map((a) => (inDrawing(e) ? a.name : written(a)))].join(" "));
