(() => {
  const folds = document.querySelectorAll("details");
  const openTo = (hash) => {
    const place = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (place) { if (place.tagName === "DETAILS") place.open = true; place.scrollIntoView(); }
  };
  addEventListener("hashchange", () => openTo(location.hash));
  document.addEventListener("click", (event) => {  // also where the hash stays the same
    const link = event.target.closest("a[href^='#']");
    if (link) setTimeout(() => openTo(link.hash));
  });

  const places = [...document.querySelectorAll(".plot[id]")];
  const isShown = (place) => !place.closest("details:not([open])");
  const unpacked = (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  let loading, figures;  // the library and the figures are unpacked once, before the first drawing or when the page is idle
  const load = () => loading ??= (async () => {
    const [library, text] = await Promise.all([unpacked("library"), unpacked("figures")]);
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    figures = text;
  })();

  const { colors, config } = JSON.parse(document.getElementById("settings").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const inColors = (isDark) => JSON.parse(isDark ? colors.reduce((own, [light, dark]) => own.replaceAll(light, dark), figures) : figures);
  const hidden = {}, drawnAs = new Map();  // how each place was drawn last: "dark", "light" or "paper"
  const draw = (kind, width) => {
    if (!figures) return;
    const due = places.filter((place) => (width || isShown(place)) && drawnAs.get(place) !== kind);
    const all = due.length ? inColors(kind === "dark") : {};
    for (const place of due) {
      const own = all[place.id];
      (hidden[place.id] || []).forEach((index) => { own.data[index].visible = "legendonly"; });
      const height = Math.min(parseFloat(place.style.height), 600);  // a figure with its caption fits on a printed page
      const layout = width ? { ...own.layout, width, height, autosize: false } : own.layout;
      const drawn = Plotly.react(place, own.data, layout, config);
      if (own.frames) drawn.then(() => Plotly.addFrames(place, own.frames));
      drawnAs.set(place, kind);
    }
    document.documentElement.dataset.drawn = "true";
  };
  const drawShown = async () => {
    if (!places.some(isShown)) return;
    await load();
    draw(prefersDark.matches ? "dark" : "light");
  };
  if (!("DecompressionStream" in window)) {
    places.forEach((place) => { place.textContent = "This browser is too old to unpack the figures. The tables hold the numbers."; });
    return;
  }
  folds.forEach((fold) => fold.addEventListener("toggle", async () => {
    await drawShown();
    if (fold.open) fold.querySelectorAll(".js-plotly-plot").forEach((place) => { if (isShown(place)) Plotly.Plots.resize(place); });
  }));
  prefersDark.addEventListener("change", drawShown);
  addEventListener("beforeprint", () => { folds.forEach((fold) => { fold.open = true; }); draw("paper", 640); });
  addEventListener("afterprint", drawShown);
  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    const traces = JSON.parse(button.dataset.traces), id = button.dataset.plot;
    button.setAttribute("aria-pressed", isOn);
    hidden[id] = (hidden[id] || []).filter((index) => !traces.includes(index)).concat(isOn ? [] : traces);
    Plotly.restyle(id, { visible: isOn ? true : "legendonly" }, traces);
  }));
  openTo(location.hash);
  drawShown();
  if (places.length) (window.requestIdleCallback || setTimeout)(load);  // printing cannot wait for it

  const links = new Map([...document.querySelectorAll(".beside a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(target.id)?.setAttribute("aria-current", "true");
  }), { rootMargin: "0px 0px -70% 0px" });
  links.forEach((_, id) => { const place = document.getElementById(id); if (place) seen.observe(place); });
})();
