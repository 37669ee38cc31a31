// Draws the figures of the gallery in the colors of the page, and again when these change.
const background = () => getComputedStyle(document.body).getPropertyValue("--md-default-bg-color").trim();
const ink = () => getComputedStyle(document.body).getPropertyValue("--md-default-fg-color").trim();

function draw() {
  for (const stored of document.querySelectorAll("script[data-figure]")) {
    const figure = JSON.parse(stored.textContent);
    const layout = { ...figure.layout, paper_bgcolor: background(), plot_bgcolor: background(), autosize: true };
    delete layout.width;
    layout.font = { ...layout.font, color: ink() };
    Plotly.react(stored.dataset.figure, figure.data, layout, { responsive: true, displaylogo: false });
  }
}

const drawn = document.querySelector("script[data-figure]");
if (drawn) {
  const library = document.createElement("script");
  library.src = new URL("plotly.min.js", document.currentScript.src).href;
  library.onload = draw;
  document.head.append(library);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
}
