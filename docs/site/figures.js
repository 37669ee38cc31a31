// Draws the figures of the gallery. In dark mode the style sheet turns their lightness around.
function draw() {
  for (const stored of document.querySelectorAll("script[data-figure]")) {
    const { data, layout } = JSON.parse(stored.textContent);
    const { width, title, ...rest } = layout;
    const place = document.getElementById(stored.dataset.figure);
    if (title?.text) {
      // As text of the page it breaks lines on a narrow screen, which a figure's title does not.
      const caption = Object.assign(document.createElement("p"), { className: "caption", innerHTML: title.text });
      place.parentElement.before(caption);
      rest.margin = { ...rest.margin, t: Math.max((rest.margin?.t ?? 100) - 40, 30) };
    }
    Plotly.newPlot(place, data, { ...rest, autosize: true }, { responsive: true, displaylogo: false });
  }
}

if (document.querySelector("script[data-figure]")) {
  const library = document.createElement("script");
  library.src = new URL("plotly.min.js", document.currentScript.src).href;
  library.onload = draw;
  document.head.append(library);
}
