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
  let unpacking, figures;  // the library and the figures are unpacked once
  const load = () => unpacking ??= (async () => {
    const [library, text] = await Promise.all([unpacked("library"), unpacked("figures")]);
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    figures = new Map(Object.entries(JSON.parse(text)).map(([id, own]) => [id, JSON.stringify(own)]));
  })();

  const { colors, config } = JSON.parse(document.getElementById("settings").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = {}, drawnAs = new Map();  // how each place was drawn last: "dark", "light" or "paper"
  const kindOfScreen = () => (prefersDark.matches ? "dark" : "light");
  const draw = (place, kind, width) => {
    const text = figures?.get(place.id);
    if (!text || drawnAs.get(place) === kind) return;
    const own = JSON.parse(kind === "dark" ? colors.reduce((all, [light, dark]) => all.replaceAll(light, dark), text) : text);
    (hidden[place.id] || []).forEach((index) => { own.data[index].visible = "legendonly"; });
    const height = Math.min(parseFloat(place.style.height), 600);  // a figure with its caption fits on a printed page
    const layout = width ? { ...own.layout, width, height, autosize: false } : own.layout;
    const drawn = Plotly.react(place, own.data, layout, config);
    if (own.frames) drawn.then(() => Plotly.addFrames(place, own.frames));
    drawnAs.set(place, kind);
  };
  const drawNear = () => places.forEach((place) => {  // to the window, by half of its height
    const { top, bottom } = place.getBoundingClientRect();
    if (isShown(place) && top < 1.5 * innerHeight && bottom > -0.5 * innerHeight) draw(place, kindOfScreen());
  });
  let isWaiting = false;
  const drawRest = () => {  // one by one, so that the page stays responsive
    const next = places.find((place) => isShown(place) && drawnAs.get(place) !== kindOfScreen());
    document.documentElement.dataset.drawn = !next;
    if (!next || isWaiting) return;
    isWaiting = true;
    setTimeout(() => { isWaiting = false; draw(next, kindOfScreen()); drawRest(); });
  };
  const drawShown = async () => {
    if (!places.some(isShown)) return;
    await load();
    drawNear();
    drawRest();
  };
  addEventListener("scroll", drawNear, { passive: true });
  if (!("DecompressionStream" in window)) {
    places.forEach((place) => { place.textContent = "This browser is too old to unpack the figures. The tables hold the numbers."; });
    loaded("figures");
    return;
  }
  folds.forEach((fold) => fold.addEventListener("toggle", async () => {
    await drawShown();
    if (fold.open) fold.querySelectorAll(".js-plotly-plot").forEach((place) => {  // drawn before the window changed
      if (isShown(place) && place._fullLayout.width !== place.clientWidth) Plotly.Plots.resize(place);
    });
  }));
  const enter = (place, isIn) => {  // the tools of a plot are no tab stops until it is entered
    place.classList.toggle("entered", isIn);
    place.setAttribute("role", isIn ? "group" : "img");
  };
  places.forEach((place) => {
    place.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target === place) { enter(place, true); place.querySelector(".modebar-btn")?.focus(); }
      else if (event.key === "Escape") { enter(place, false); place.focus(); }
      else return;
      event.preventDefault();
    });
    place.addEventListener("focusout", (event) => { if (!place.contains(event.relatedTarget)) enter(place, false); });
  });
  prefersDark.addEventListener("change", drawShown);
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...folds].filter((fold) => !fold.open);
    folds.forEach((fold) => { fold.open = true; });
    places.forEach((place) => draw(place, "paper", 640));
  });
  addEventListener("afterprint", () => { closed.forEach((fold) => { fold.open = false; }); drawShown(); });
  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    const traces = JSON.parse(button.dataset.traces), id = button.dataset.plot;
    button.setAttribute("aria-pressed", isOn);
    hidden[id] = (hidden[id] || []).filter((index) => !traces.includes(index)).concat(isOn ? [] : traces);
    Plotly.restyle(id, { visible: isOn ? true : "legendonly" }, traces);
  }));
  openTo(location.hash);
  drawShown();
  (places.length ? load() : Promise.resolve()).finally(() => loaded("figures"));

  const links = new Map([...document.querySelectorAll(".beside a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(target.id)?.setAttribute("aria-current", "true");
  }), { rootMargin: "0px 0px -70% 0px" });
  links.forEach((_, id) => { const place = document.getElementById(id); if (place) seen.observe(place); });
})();
