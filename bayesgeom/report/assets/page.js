(async () => {
  const say = (text) => document.querySelectorAll(".plot").forEach((place) => { place.textContent = text; });
  if (!("DecompressionStream" in window)) {
    say("This browser is too old to unpack the figures. The tables below hold the numbers.");
    return;
  }
  const unpacked = (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const [library, text] = await Promise.all([unpacked("library"), unpacked("figures")]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);

  const { colors, config } = JSON.parse(document.getElementById("settings").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const inColors = (isDark) => JSON.parse(isDark ? colors.reduce((own, [light, dark]) => own.replaceAll(light, dark), text) : text);
  const hidden = {};
  const draw = (isDark, width) => {
    for (const [id, own] of Object.entries(inColors(isDark))) {
      const place = document.getElementById(id);
      (hidden[id] || []).forEach((index) => { own.data[index].visible = "legendonly"; });
      const height = Math.min(parseFloat(place.style.height), 600);  // a figure with its caption fits on a printed page
      const layout = width ? { ...own.layout, width, height, autosize: false } : own.layout;
      const drawn = Plotly.react(place, own.data, layout, config);
      if (own.frames) drawn.then(() => Plotly.addFrames(place, own.frames));
    }
  };
  draw(prefersDark.matches);
  prefersDark.addEventListener("change", () => draw(prefersDark.matches));
  const folds = document.querySelectorAll("details");
  const fit = (fold) => { if (fold.open) fold.querySelectorAll(".plot").forEach((place) => Plotly.Plots.resize(place)); };
  folds.forEach((fold) => fold.addEventListener("toggle", () => fit(fold)));
  addEventListener("beforeprint", () => { folds.forEach((fold) => { fold.open = true; }); draw(false, 640); });
  addEventListener("afterprint", () => draw(prefersDark.matches));
  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    const traces = JSON.parse(button.dataset.traces), id = button.dataset.plot;
    button.setAttribute("aria-pressed", isShown);
    hidden[id] = (hidden[id] || []).filter((index) => !traces.includes(index)).concat(isShown ? [] : traces);
    Plotly.restyle(id, { visible: isShown ? true : "legendonly" }, traces);
  }));
  document.documentElement.dataset.drawn = "true";
})();
