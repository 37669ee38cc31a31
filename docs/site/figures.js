// Draws the figures of the gallery. In dark mode the style sheet turns their lightness around.
function draw() {
  for (const stored of document.querySelectorAll("script[data-figure]")) {
    const { data, layout } = JSON.parse(stored.textContent);
    const { width, title, ...rest } = layout;
    const place = document.getElementById(stored.dataset.figure);
    const frame = place.parentElement;
    if (title?.text) {
      // As text of the page it breaks lines on a narrow screen, which a figure's title does not.
      const caption = Object.assign(document.createElement("p"), { className: "caption", innerHTML: title.text });
      frame.before(caption);
      rest.margin = { ...rest.margin, t: Math.max((rest.margin?.t ?? 100) - 40, 30) };
    }
    const widths = Object.keys(rest).filter((key) => key.startsWith("xaxis")).map((key) => {
      const [start, end] = rest[key].domain ?? [0, 1];
      return end - start;
    });
    place.classList.toggle("columns", Math.min(...widths) < 0.5);
    const options = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg" } };
    Plotly.newPlot(place, data, { ...rest, autosize: true }, options).then(() => {
      const { left, right } = place.getBoundingClientRect();
      const isCut = [...place.querySelectorAll("svg text")].some((text) => {
        const box = text.getBoundingClientRect();
        return box.left < left - 1 || box.right > right + 1;
      });
      if (isCut && !place.classList.contains("columns")) {
        place.classList.add("columns");
        Plotly.Plots.resize(place);
      }
    });
    const cue = Object.assign(document.createElement("p"), { className: "cue", textContent: "Scroll sideways: the figure goes on →" });
    frame.before(cue);
    new ResizeObserver(() => {
      cue.hidden = frame.scrollWidth <= frame.clientWidth;
      cue.hidden ? frame.removeAttribute("tabindex") : (frame.tabIndex = 0); // then arrow keys scroll it
    }).observe(frame);
  }
}

if (document.querySelector("script[data-figure]")) {
  const library = document.createElement("script");
  library.src = new URL("plotly.min.js", document.currentScript.src).href;
  library.onload = draw;
  document.head.append(library);
}
