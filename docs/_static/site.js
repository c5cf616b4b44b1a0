// Charts that are wider than the screen start at their middle, where their first box is.
addEventListener("load", () => {
  for (const drawing of document.querySelectorAll(".drawing:has(svg)")) {
    drawing.scrollLeft = (drawing.scrollWidth - drawing.clientWidth) / 2;
  }
});
