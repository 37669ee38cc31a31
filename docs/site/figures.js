// Draws the figures of the gallery. In dark mode the style sheet turns their lightness around.
function draw() {
  for (const stored of document.querySelectorAll("script[data-figure]")) {
    const { data, layout } = JSON.parse(stored.textContent);
    delete layout.width;
    Plotly.newPlot(stored.dataset.figure, data, { ...layout, autosize: true }, { responsive: true, displaylogo: false });
  }
}

if (document.querySelector("script[data-figure]")) {
  const library = document.createElement("script");
  library.src = new URL("plotly.min.js", document.currentScript.src).href;
  library.onload = draw;
  document.head.append(library);
}
