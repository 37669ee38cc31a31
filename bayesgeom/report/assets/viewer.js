// The viewer: an exact posterior next to a network's insides, for a few sequences. One ES module without a framework.
// `mount(element, data)` draws it into an element of a page; data is a gzip of a safetensors file, as bytes or base64.
// `export default { render }` is the interface of anywidget: there a switched-off head runs the model.

const MOST_ANSWERS = 24, TOP_ANSWERS = 16, TOP_KEYS = 5;
const STYLE = `
.bgv { --v-text: #1d1f23; --v-soft: #5c6570; --v-line: #d9dde2; --v-back: #fff; --v-cell: #f1f3f6; --v-exact: #8a929d;
  --v-model: #2563c9; --v-effect: #a84a06; --v-over: #fff; --v-mid: #000; --v-ink: #1d1f23; color: var(--v-text); font-size: .9rem; line-height: 1.35;
  border: 1px solid var(--v-line); border-radius: 10px; padding: .8rem 1rem; text-align: left; container-type: inline-size; }
@media screen and (prefers-color-scheme: dark) { body:not([data-jp-theme-light=true]) .bgv { --v-text: #e8eaed;
  --v-soft: #a4abb5; --v-line: #3a404a; --v-back: #16181c; --v-cell: #262b33; --v-exact: #8f98a5; --v-model: #6ea8ff;
  --v-effect: #ec9142; --v-over: #000; --v-mid: #000; --v-ink: #fff; } }
body[data-jp-theme-light=false] .bgv { --v-text: #e8eaed; --v-soft: #a4abb5; --v-line: #3a404a; --v-back: #16181c;
  --v-cell: #262b33; --v-exact: #8f98a5; --v-model: #6ea8ff; --v-effect: #ec9142; --v-over: #000; --v-mid: #000; --v-ink: #fff; }
.bgv *, .bgv *::before { box-sizing: border-box; }
.bgv:focus { outline: 2px solid var(--v-model); outline-offset: 2px; }
.bgv:focus:not(:focus-visible) { outline: none; }
.bgv p, .bgv h3 { margin: 0; } .bgv h3 { font-size: .85rem; font-weight: 600; margin-bottom: .35rem; }
.bgv .soft { font-weight: 400; } .bgv .soft, .bgv .keys { color: var(--v-soft); font-size: .8rem; }
.bgv .bar { display: flex; flex-wrap: wrap; gap: .35rem 1rem; align-items: center; margin-bottom: .35rem; }
.bgv .step { display: inline-flex; align-items: center; gap: .25rem; white-space: nowrap; }
.bgv .step b { min-width: 2.1em; text-align: center; font-variant-numeric: tabular-nums; }
.bgv button { font: inherit; color: inherit; background: var(--v-cell); border: 1px solid var(--v-line); border-radius: 6px;
  min-width: 2rem; min-height: 1.9rem; padding: 0 .45rem; cursor: pointer; }
.bgv .switch.off { background: var(--v-effect); border-color: var(--v-effect); color: var(--v-over); }
.bgv input { width: 12rem; max-width: 60vw; accent-color: var(--v-model); } .bgv [data-step=step] b { min-width: 4em; text-align: left; }
.bgv button:focus-visible { outline: 2px solid var(--v-model); outline-offset: 1px; }
.bgv .tokens { display: flex; flex-wrap: wrap; gap: .25rem; max-height: 11.5rem; overflow: auto; margin: .5rem 0 .8rem;
  padding: 3px; position: relative; }
.bgv .tokens span { white-space: pre; padding: .12rem .38rem; border-radius: 6px; border: 1px solid transparent; min-height: 1.55rem; color: var(--v-ink);
  background: color-mix(in srgb, var(--v-model) calc(var(--p, 0) * 1%), var(--v-cell)); }
.bgv .map .head { color: var(--v-ink); } .bgv .tokens .dark, .bgv .map .dark { color: var(--v-over); } .bgv .tokens .mid, .bgv .map .mid { color: var(--v-mid); } .bgv .tokens sub { font-size: .75em; }
.bgv .tokens .scored { border-bottom-color: var(--v-soft); cursor: pointer; }
.bgv .tokens .later { color: var(--v-soft); background: none; } .bgv .tokens .here { border-color: var(--v-text); outline: 1px solid var(--v-text); }
.bgv .grid { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 3.2fr) minmax(0, 3fr); gap: 1.1rem 1.4rem; }
.bgv .grid.plain { grid-template-columns: minmax(0, 5fr) minmax(0, 3fr); }
.bgv .table { display: grid; gap: 2px; align-items: center; font-size: .74rem; font-variant-numeric: tabular-nums; }
.bgv .table > * { min-width: 0; } .bgv .label.top { align-self: start; } .bgv .label { color: var(--v-soft); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.bgv .name { text-align: center; overflow: hidden; text-overflow: ellipsis; letter-spacing: -.03em; white-space: pre; } .bgv .bits { text-align: right; white-space: nowrap; color: var(--v-soft); }
.bgv .name.short { overflow: visible; }
.bgv .column { height: 7.5rem; display: flex; align-items: flex-end; justify-content: center; gap: 1px; border-bottom: 1px solid var(--v-line); }
.bgv .column i { flex: 0 1 1.1rem; min-height: 0; } .bgv .exact { background: var(--v-exact); } .bgv .model { background: var(--v-model); }
.bgv .edited { background: var(--v-effect); }
.bgv .cell { height: 1.05rem; border-radius: 3px; background: color-mix(in srgb, var(--v-model) calc(var(--p, 0) * 1%), var(--v-cell)); }
.bgv .cell.of-exact { background: color-mix(in srgb, var(--v-exact) calc(var(--p, 0) * 1%), var(--v-cell)); }
.bgv .deep { font-size: .66rem; } .bgv .deep .cell { height: .72rem; } .bgv .deep .label, .bgv .deep .bits { line-height: .8rem; }
.bgv .row { display: contents; cursor: pointer; } .bgv .row.here .label { color: var(--v-text); font-weight: 600; }
.bgv .legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .8rem; margin-bottom: .3rem; }
.bgv .legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .3rem; }
.bgv .legend i.edited, .bgv .column i.edited { background: var(--v-effect); }
.bgv .map { display: grid; gap: 2px; font-size: .7rem; font-variant-numeric: tabular-nums; text-align: center; }
.bgv .map .head { border-radius: 3px; cursor: pointer; min-width: 0; height: var(--h); line-height: var(--h); overflow: hidden;
  background: color-mix(in srgb, var(--v-hue, var(--v-effect)) calc(var(--p, 0) * 1%), var(--v-cell)); }
.bgv .map .head.here { outline: 2px solid var(--v-text); }
.bgv .map .head.off { text-decoration: line-through; box-shadow: inset 0 0 0 2px var(--v-effect); }
.bgv .scale { display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 2px; margin: .3rem 0 0 2.2rem; font-size: .7rem; text-align: center; color: var(--v-soft); }
.bgv .scale i { display: block; height: .5rem; border-radius: 2px; background: color-mix(in srgb, var(--v-hue, var(--v-effect)) calc(var(--p) * 1%), var(--v-cell)); }
.bgv .attended { min-height: 6.6rem; align-content: start; display: grid; grid-template-columns: minmax(3.5rem, auto) minmax(0, 1fr) 3.2rem; gap: .1rem .5rem; align-items: center;
  font-size: .8rem; margin: .3rem 0 0; font-variant-numeric: tabular-nums; }
.bgv .attended .word { white-space: pre; overflow: hidden; text-overflow: ellipsis; max-width: 8rem; }
.bgv .attended i { height: .6rem; border-radius: 2px; background: var(--v-model); } .bgv .attended .share { text-align: right; }
.bgv .plot { position: relative; height: 6.2rem; border-bottom: 1px solid var(--v-line); cursor: pointer; touch-action: pan-y; }
.bgv .plot.low { height: 3.4rem; } .bgv .plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.bgv .plot path { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.bgv .plot .at { position: absolute; top: 0; bottom: 0; border-left: 1.5px dashed var(--v-text); pointer-events: none; }
.bgv .ends { display: flex; justify-content: space-between; gap: .5rem; color: var(--v-soft); font-size: .74rem; }
.bgv .pattern { position: relative; cursor: pointer; background: var(--v-cell); } .bgv canvas { display: block; width: 100%; height: 6.5rem; image-rendering: pixelated; }
.bgv .pattern .at { position: absolute; left: 0; right: 0; outline: 1.5px solid var(--v-text); pointer-events: none; }
.bgv .part { margin-top: .9rem; } .bgv .said { margin-top: .7rem; padding-top: .5rem; border-top: 1px solid var(--v-line); font-size: .85rem; }
@container (max-width: 1040px) { .bgv .name.short { font-size: .62rem; } }
@container (max-width: 860px) { .bgv .grid, .bgv .grid.plain { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
  .bgv .answers { grid-column: 1 / -1; } }
@container (max-width: 560px) { .bgv .grid, .bgv .grid.plain { grid-template-columns: minmax(0, 1fr); }
  .bgv .table { gap: 1px; font-size: .7rem; } .bgv .name.short { font-size: .6rem; } .bgv .name.short.odd { visibility: hidden; } .bgv .attended { min-height: 0; }
  .bgv .bar { gap: .35rem .6rem; } .bgv .step b { min-width: 1.7em; } }
@media (max-width: 599px) { .bgv { padding: .7rem; } }
@media print { .bgv { break-inside: avoid; print-color-adjust: exact; padding: 0; border: 0; } .bgv .bar, .bgv .keys { display: none; }
  .bgv .column { height: 5rem; } .bgv .plot, .bgv canvas { height: 4.5rem; } .bgv .attended { min-height: 0; } }
`;

// ---- data

const TYPES = { U8: Uint8Array, I32: Int32Array, F32: Float32Array };

const halves = (bits) => Float32Array.from(bits, (half) => {
  const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
});

/** Return the arrays of a compressed safetensors file by name, each with `shape`, and the texts in its metadata. */
export async function unpacked(data) {
  const bytes = typeof data === "string" ? Uint8Array.from(atob(data.trim()), (letter) => letter.charCodeAt(0)) : data;
  const buffer = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: texts, ...listed } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const found = { about: JSON.parse(texts.about) };
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(listed)) {
    const part = buffer.slice(start + from, start + to);
    const values = dtype === "F16" ? halves(new Uint16Array(part)) : new TYPES[dtype](part);
    found[name] = { values, shape };
  }
  return found;
}

/** Return the entries of an array at the first indices, as a view. */
const rows = ({ values, shape }, ...index) => {
  let from = 0, size = values.length;
  index.forEach((own, axis) => { size /= shape[axis]; from += own * size; });
  return values.subarray(from, from + size);
};
const entry = (array, ...index) => rows(array, ...index)[0];

// ---- words and numbers

/** Return a number as every part of the viewer prints it: three digits, two below 0.1. */
export const number = (value) => {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value !== 0 && size < 1e-4) return value < 0 ? ">−0.0001" : "<0.0001";
  const text = value === 0 ? "0" : size < 0.0995 ? String(Number(value.toPrecision(2))) : size < 999.5 ? value.toPrecision(3) : value.toFixed(0);
  return text.replace("-", "−");
};
/** Return what switching a head off does to the KL. */
const effectText = (bits) => {
  if (Math.abs(bits) < 1e-4) return `switching it off costs nothing (${bits ? "<0.0001" : "0"} bits)`;
  return bits > 0 ? `switching it off costs ${number(bits)} bits` : `switching it off gains ${number(-bits)} bits`;
};
const share = (value) => `${Math.round(100 * value)} %`;
const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
const shown = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥");
const marked = (text) => {
  const parts = /^([A-Za-z])(\d+)$/.exec(text);
  return parts ? `${parts[1]}<sub>${parts[2]}</sub>` : escaped(shown(text));
};
const made = (html, className, tag = "div") => {
  const own = document.createElement(tag);
  own.className = className;
  own.innerHTML = html;
  return own;
};
const tone = (part) => (part > 0.88 ? "dark" : part > 0.61 ? "mid" : "");  // where black and white text have equal contrast
const DECADES = [0.001, 0.01, 0.1, 1, 10];  // bits: the shades of effects, the same in every sequence and page
/** Return the shade of an effect, from 0 to 1. */
const shadeOf = (bits) => Math.min(1, Math.max(0, (Math.log10(Math.abs(bits)) + 3) / 4));

// ---- the viewer

/** Draw the viewer into an element. `ask({sequence, heads})` returns the model's numbers without these heads, if given. */
export async function mount(element, data, ask = null) {
  if (!("DecompressionStream" in globalThis)) {
    element.textContent = "This browser is too old to unpack the viewer's data.";
    return null;
  }
  try {
    return new Viewer(element, await unpacked(data), ask);
  } catch (error) {
    console.error(error);
    element.textContent = "The viewer cannot read this run, which another version of bayesgeom saved. Diagnose the model again.";
    return null;
  }
}

class Viewer {
  constructor(element, data, ask) {
    Object.assign(this, data, { element, ask });
    [this.nRows, this.nPlaces, this.nAnswers] = this.exact_probs.shape;
    this.steps = [...new Set(this.training_steps.values)], this.step = this.steps.length - 1;  // of a training
    this.nSequences = this.nRows / this.steps.length;
    [, this.nLayers, this.nHeads] = this.attention.shape;
    this.hasHeads = this.nLayers > 0 && this.nHeads > 0;
    this.hasEffects = this.edited_kl_bits.shape[1] > 0;
    this.hasLens = this.lens_probs.shape[1] > 0;
    this.off = new Set(), this.reply = null, this.asked = 0;
    this.sequence = 0, this.place = this.nPlaces - 1, this.layer = Math.max(0, this.nLayers - 1), this.head = 0;
    this.build();
    if (this.hasHeads) this.chooseHead();
    this.turn();
  }

  /** Start where a head matters most in the first sequence, or with the head that attends most to one earlier token. */
  chooseHead() {
    let best = -Infinity;
    for (let place = this.hasEffects ? 0 : this.nPlaces - 1; place < this.nPlaces; place++) {
      for (let layer = 0; layer < this.nLayers; layer++) {
        for (let head = 0; head < this.nHeads; head++) {
          const own = this.hasEffects ? this.effect(layer, head, place) : this.sharpest(layer, head, place, 1);
          if (own > best) [best, this.layer, this.head, this.place] = [own, layer, head, place];
        }
      }
    }
  }

  get row() {
    return this.step * this.nSequences + this.sequence;
  }

  effect(layer, head, place = this.place) {
    return entry(this.edited_kl_bits, this.row, layer, head, place) - entry(this.kl_bits, this.row, place);
  }

  /** Return the largest attention weight of a head, of tokens from `first` on; with `first`, without the token itself. */
  sharpest(layer, head, place = this.place, first = 0) {
    const last = entry(this.scored, this.row, place) + (first ? 0 : 1);
    return rows(this.attention, this.row, layer, head, place).slice(first, last).reduce((most, own) => Math.max(most, own), 0) / 255;
  }

  build() {
    const step = (name, before, after, keys) => `<span class="step" data-step="${name}">${name} <button type="button" aria-label="previous ${name}"` +
      ` data-by="-1">${before}</button><b></b><button type="button" aria-label="next ${name}" data-by="1">${after}</button></span>`;
    const steps = [step("sequence", "◀", "▶"), step("position", "◀", "▶")];
    if (this.hasHeads) steps.push(step("layer", "▼", "▲"), step("head", "◀", "▶"));
    if (this.steps.length > 1) steps.unshift(`<label class="step" data-step="step">training step <input type="range" max="${this.steps.length - 1}" value="${this.step}"><b></b></label>`);
    if (this.hasEffects || this.ask) steps.push('<button type="button" class="switch"></button>');
    const keys = ["← → position", "Page Up/Down sequence"];
    if (this.hasHeads) keys.splice(1, 0, "↑ ↓ layer", "[ ] head");
    if (this.hasEffects || this.ask) keys.push("o head off");
    const root = made(`<style>${STYLE}</style><div class="bar">${steps.join("")}</div><p class="keys">Keys: ${keys.join(" · ")}</p>` +
      '<div class="tokens" role="img"></div><div class="grid"></div><p class="said" aria-live="polite"></p>', "bgv");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `Look inside. Keys: ${keys.join(", ")}`);
    const grid = root.querySelector(".grid");
    grid.classList.toggle("plain", !this.hasHeads);
    const lens = this.hasLens ? '<p class="soft">each row: what the logit lens reads after this layer (model: layer ' + (this.lens_probs.shape[1] - 1) + ')<span class="intact"></span></p>' : "";
    grid.append(made(`<div class="legend"></div><div class="table" role="img" aria-label="probabilities by answer${this.hasLens ? ", and read after each layer" : ""}; the sentence at the end says the largest"></div>${lens}`, "answers"));
    if (this.hasHeads) {
      const marks = this.hasEffects ? DECADES : [0, 0.25, 0.5, 0.75, 1], hue = this.hasEffects ? "" : ";--v-hue:var(--v-model)";
      const scale = `<div class="scale">${marks.map((mark, at) => `<span><i style="--p:${25 * at}${hue}"></i>${at ? "" : this.hasEffects ? "≤ " : ""}${mark}${at === 4 && this.hasEffects ? " bits" : ""}</span>`).join("")}</div>` +
        (this.hasEffects ? '<p class="soft">blue: the error falls without the head</p>' : "");
      const what = this.hasEffects ? "bits lost without each head" : "largest attention weight of each head";
      grid.append(made(`<h3>${what} <span class="soft">in this sequence, at this position</span></h3><div class="map" role="img" aria-label="${what}: layers by heads; the sentence at the end says that of the chosen head"></div>${scale}<div class="part"><h3 class="of-head"></h3><div class="attended"></div></div>`, "heads"));
    }
    const pattern = '<div class="part"><h3 class="of-pattern"></h3><div class="pattern" role="img" aria-label="attention of the chosen head from every scored position"><canvas></canvas><div class="at"></div></div>' +
      '<div class="ends"><span>attended token →</span><span>scored position ↓</span></div></div>';
    const effect = '<div class="part"><h3>lost without it <span class="soft"></span></h3><div class="plot low effects" role="img" aria-label="bits lost without the chosen head, by position"></div><div class="ends"></div></div>';
    grid.append(made('<h3>entropy <span class="soft"></span><span class="soft intact"></span></h3><div class="plot entropy" role="img" aria-label="entropy of exact and model, by position"></div><div class="ends"></div>' +
      (this.hasEffects ? effect : "") + (this.hasHeads ? pattern : ""), "curves"));
    this.root = root;
    this.part = (name) => root.querySelector(name);
    root.addEventListener("input", (event) => this.go({ step: Number(event.target.value) }));
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("click", (event) => this.click(event));
    const keyOfPage = (event) => { if (event.target.matches("body, a, summary")) this.key(event); };  // no key of an input or of a notebook
    root.addEventListener("pointerenter", () => document.addEventListener("keydown", keyOfPage));
    root.addEventListener("pointerleave", () => document.removeEventListener("keydown", keyOfPage));
    this.element.replaceChildren(root);
  }

  // ---- input

  key(event) {
    if (event.target.matches("input")) return;  // arrows move the slider
    if (event.altKey && event.key !== "[" && event.key !== "]") return;
    if (event.metaKey || (event.ctrlKey && !event.altKey)) return;
    const moves = { ArrowLeft: ["position", -1], ArrowRight: ["position", 1], ArrowUp: ["layer", 1], ArrowDown: ["layer", -1],
      "[": ["head", -1], "]": ["head", 1], PageUp: ["sequence", -1], PageDown: ["sequence", 1],
      Home: ["position", -Infinity], End: ["position", Infinity] };
    if (event.key === "o") this.toggle();
    else if (moves[event.key]) this.move(...moves[event.key]);
    else return;
    event.preventDefault();
  }

  click(event) {
    const target = event.target.closest("button, .scored, .head, .row, .plot, .pattern");
    if (!target) return;
    const { by, place, layer, head } = target.dataset;
    if (by) this.move(target.parentNode.dataset.step, Number(by));
    else if (target.matches(".switch")) this.toggle();
    else if (target.matches(".head")) this.go({ layer: Number(layer), head: Number(head) });
    else if (target.matches(".row")) { if (layer) this.go({ layer: Number(layer) }); }
    else if (place) this.go({ place: Number(place) });
    else {
      const box = target.getBoundingClientRect(), isCurve = target.matches(".plot");
      const part = isCurve ? (event.clientX - box.left) / box.width * (this.nPlaces - 1) : Math.floor((event.clientY - box.top) / box.height * this.nPlaces);
      this.go({ place: Math.min(this.nPlaces - 1, Math.max(0, Math.round(part))) });
    }
  }

  move(what, by) {
    const sizes = { sequence: this.nSequences, position: this.nPlaces, layer: this.nLayers, head: this.nHeads };
    const name = what === "position" ? "place" : what;
    if (sizes[what]) this.go({ [name]: Math.min(sizes[what] - 1, Math.max(0, this[name] + by)) });
  }

  go(change) {
    const former = this.row, head = String([this.layer, this.head]);
    Object.assign(this, change);
    if (!this.ask && head !== String([this.layer, this.head])) this.off.clear();
    if (this.row !== former) this.turn(); else this.draw();
  }

  /** Switch the chosen head off or on. On a saved page another chosen head switches it on again; with a model, heads add up. */
  toggle() {
    if (!this.hasEffects && !this.ask) return;
    const name = `${this.layer},${this.head}`;
    if (!this.off.delete(name)) this.off.add(name);
    if (this.ask) this.run(); else this.draw();
  }

  /** Let the model run without the heads that are off. */
  async run() {
    const heads = this.heads(), asked = ++this.asked;
    this.reply = null;
    this.draw();
    if (!heads.length) return;
    const reply = await this.ask({ sequence: this.sequence, heads });
    if (asked !== this.asked) return;
    this.reply = reply;
    this.draw();
  }

  heads() {
    return [...this.off].map((name) => name.split(",").map(Number));
  }

  /** Return probabilities and KL without the heads that are off; null where none is, or the model has not replied yet. */
  without() {
    const heads = this.heads();
    if (!heads.length) return null;
    const name = heads.map(([layer, head]) => `L${layer}H${head}`).join(" + ");
    if (this.reply) return { name, probs: rows(this.reply.probs, this.place), bits: entry(this.reply.kl_bits, this.place) };
    if (this.ask) return { name, probs: null, bits: NaN };
    const at = [this.row, ...heads[0]];
    return { name, probs: rows(this.edited_probs, ...at, this.place), bits: entry(this.edited_kl_bits, ...at, this.place) };
  }

  // ---- drawing

  /** Draw another sequence. */
  turn() {
    const texts = this.about.tokens[this.row], places = new Map();
    rows(this.scored, this.row).forEach((token, place) => places.set(token, place));
    this.part(".tokens").innerHTML = texts.map((text, at) => {
      const isScored = places.has(at);
      return `<span${isScored ? ` class="scored" data-place="${places.get(at)}"` : ""} title="${escaped(text)} at ${at + 1}">${marked(text)}</span>`;
    }).join("");
    this.part(".tokens").setAttribute("aria-label", `Tokens: ${texts.join(" ")}`);
    this.chips = [...this.part(".tokens").children], this.shades = null;
    this.drawCurve(".entropy", [["exact", this.exact_entropy_bits], ["model", this.model_entropy_bits]].map(([name, own]) => [name, rows(own, this.row)]));
    if (this.off.size && this.ask) this.run(); else this.draw();
  }

  draw() {
    this.token = entry(this.scored, this.row, this.place);
    const values = { step: this.steps[this.step].toLocaleString("en"), sequence: `${this.sequence + 1} of ${this.nSequences}`, position: this.token + 1, layer: this.layer, head: this.head };
    this.root.querySelectorAll(".step").forEach((own) => { own.querySelector("b").textContent = values[own.dataset.step]; });
    if (this.part(".switch")) {
      const isOff = this.off.has(`${this.layer},${this.head}`), name = `layer ${this.layer} head ${this.head}`;
      this.part(".switch").textContent = isOff ? `${name} is off: switch on` : `switch ${name} off`;
      this.part(".switch").classList.toggle("off", isOff);
      this.part(".switch").setAttribute("aria-pressed", isOff);
    }
    this.root.querySelectorAll(".intact").forEach((own) => { own.textContent = this.off.size ? "; all heads on" : ""; });
    const attention = this.hasHeads ? rows(this.attention, this.row, this.layer, this.head, this.place) : null;
    this.drawTokens(attention);
    this.drawAnswers();
    if (this.hasHeads) {
      this.drawMap();
      this.drawAttended(attention);
      this.drawPattern();
    }
    if (this.hasEffects) this.drawEffects();
    this.root.querySelectorAll(".plot .at").forEach((own) => { own.style.left = `${100 * this.place / Math.max(1, this.nPlaces - 1)}%`; });
    this.say(attention);
  }

  drawTokens(attention) {
    const former = this.shades;
    this.shades = this.chips.map((_, at) => (at > this.token ? -1 : attention ? Math.round(attention[at] / 2.55) : 0));
    this.shades.forEach((shade, at) => {
      if (former && former[at] === shade) return;  // a change of style costs more than all the rest
      const chip = this.chips[at];
      chip.style.setProperty("--p", Math.max(0, shade));
      chip.classList.remove("dark", "mid", "later");
      const own = shade < 0 ? "later" : tone(shade / 100);
      if (own) chip.classList.add(own);
    });
    const here = this.chips[this.token];
    this.part(".tokens .here")?.classList.remove("here");
    here.classList.add("here");
    const box = this.part(".tokens");
    if (here.offsetTop < box.scrollTop || here.offsetTop + here.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = here.offsetTop - box.clientHeight / 2;  // not scrollIntoView, which scrolls the page
    }
  }

  /** Return the answers to show: all, or the most probable ones. */
  columns(lists) {
    const all = [...Array(this.nAnswers).keys()];
    if (this.nAnswers <= MOST_ANSWERS) return all;
    const weight = (answer) => Math.max(...lists.map((list) => list[answer]));
    return all.sort((one, other) => weight(other) - weight(one)).slice(0, TOP_ANSWERS).sort((one, other) => one - other);
  }

  /** Return the letter before the number in the names of many answers, such as "v"; "" where there is none. */
  letter() {
    const names = this.about.answers, first = names[0][0];
    return names.length > 9 && names.every((name) => name[0] === first && /^[A-Za-z]\d+$/.test(name)) ? first : "";
  }

  drawAnswers() {
    const exact = rows(this.exact_probs, this.row, this.place), model = rows(this.model_probs, this.row, this.place);
    const without = this.without(), series = [["exact", "exact", exact], ["model", "model", model]];
    if (without && without.probs) series.push(["edited", `without ${without.name}`, without.probs]);
    const columns = this.columns(series.map(([, , probs]) => probs)), names = this.about.answers;
    const isTop = columns.length < this.nAnswers ? `, ${columns.length} most probable of ${this.nAnswers}` : "";
    this.part(".legend").innerHTML = `<h3>probability among the answers${isTop}</h3>` +
      series.map(([kind, name]) => `<span><i class="${kind}"></i>${name}</span>`).join("");
    const letter = this.letter(), short = (at) => (letter ? names[at].slice(1) : marked(names[at]));
    const html = ['<span class="label top">1</span>', ...columns.map((at) => `<div class="column" title="${series.map(([, name, probs]) =>
      `${escaped(names[at])}: ${name} ${number(probs[at])}`).join("&#10;")}">${series.map(([kind, , probs]) =>
      `<i class="${kind}" style="height:${100 * probs[at]}%" data-answer="${at}" data-value="${probs[at]}"></i>`).join("")}</div>`), "<span></span>",
    `<span class="label">${letter}</span>`, ...columns.map((at) => `<span class="name${letter ? " short" : ""}${at > 9 && at % 2 ? " odd" : ""}" title="${escaped(names[at])}">${short(at)}</span>`), `<span class="bits">${this.hasLens ? "KL, bits" : ""}</span>`];
    const row = (label, probs, kind, kl, layer) => {
      const cells = columns.map((at) => `<span class="cell ${kind}" style="--p:${Math.round(100 * probs[at])}" title="${label}, ${escaped(names[at])}: ${number(probs[at])}" data-value="${probs[at]}"></span>`);
      const isHere = layer === this.layer && this.hasHeads;
      html.push(`<div class="row${isHere ? " here" : ""}"${layer === null ? "" : ` data-layer="${layer}"`}><span class="label">${label}</span>${cells.join("")}<span class="bits">${kl}</span></div>`);
    };
    row("exact", exact, "of-exact", "", null);
    if (this.hasLens) this.lensRows(row, model);
    const table = this.part(".table");
    table.style.gridTemplateColumns = `4.2rem repeat(${columns.length}, minmax(0, 1fr)) 3rem`;
    table.classList.toggle("deep", this.lens_probs.shape[1] > 12);
    table.innerHTML = html.join("");
  }

  /** Add a row for what the lens reads after each layer, the last one on top; it is the model's own output. */
  lensRows(row, model) {
    const last = this.lens_probs.shape[1];
    row(`layer ${last - 1}`, model, "", number(entry(this.kl_bits, this.row, this.place)), last - 1);
    for (let stage = last - 1; stage >= 0; stage--) {
      const probs = rows(this.lens_probs, this.row, stage, this.place);
      row(stage ? `layer ${stage - 1}` : "embedding", probs, "", number(entry(this.lens_kl_bits, this.row, stage, this.place)), stage ? stage - 1 : null);
    }
  }

  drawMap() {
    const value = (layer, head) => (this.hasEffects ? this.effect(layer, head) : this.sharpest(layer, head));
    const off = new Set(this.heads().map(String)), html = [], isRoomy = this.nHeads <= 8;
    for (let layer = this.nLayers - 1; layer >= 0; layer--) {
      html.push(`<span class="label">${layer}</span>`);
      for (let head = 0; head < this.nHeads; head++) {
        const own = value(layer, head), p = this.hasEffects ? shadeOf(own) : own;
        const classes = ["head", tone(p), layer === this.layer && head === this.head && "here", off.has(`${layer},${head}`) && "off"];
        const text = isRoomy && p >= 0.25 ? number(own).replace(/^(−?)0\./, "$1.") : "";
        html.push(`<span class="${classes.filter(Boolean).join(" ")}" style="--p:${Math.round(100 * p)}${own < 0 || !this.hasEffects ? ";--v-hue:var(--v-model)" : ""}"` +
          ` data-layer="${layer}" data-head="${head}" data-value="${own}" title="layer ${layer} head ${head}: ${number(own)}${this.hasEffects ? " bits" : ""}">${text}</span>`);
      }
    }
    html.push('<span class="label">layer</span>', ...[...Array(this.nHeads).keys()].map((head) => `<span class="label">${this.nHeads <= 16 || head % 4 === 0 ? head : ""}</span>`));
    const map = this.part(".map");
    map.style.gridTemplateColumns = `2.2rem repeat(${this.nHeads}, minmax(0, 1fr))`;
    map.style.setProperty("--h", this.nLayers <= 9 ? "1.5rem" : this.nLayers <= 16 ? "1rem" : ".6rem");
    map.innerHTML = html.join("");
  }

  drawAttended(attention) {
    const order = [...attention.keys()].filter((at) => attention[at] > 1).sort((one, other) => attention[other] - attention[one]).slice(0, TOP_KEYS);
    this.part(".of-head").textContent = `layer ${this.layer} head ${this.head} attends here to`;
    this.part(".attended").innerHTML = order.map((at) => `<span class="word">${marked(this.about.tokens[this.row][at])} at ${at + 1}</span>` +
      `<span><i style="display:block;width:${attention[at] / 2.55}%"></i></span><span class="share" data-value="${attention[at]}">${share(attention[at] / 255)}</span>`).join("");
  }

  drawPattern() {
    const at = this.part(".pattern .at");
    at.style.top = `${100 * this.place / this.nPlaces}%`;
    at.style.height = `${100 / this.nPlaces}%`;
    const name = `${this.sequence} ${this.layer} ${this.head}`;
    if (name === this.patterned) return;
    this.patterned = name;
    this.part(".of-pattern").textContent = `pattern of layer ${this.layer} head ${this.head}`;
    const canvas = this.part("canvas"), n = this.about.tokens[this.row].length, width = this.attention.shape[4];
    const whole = rows(this.attention, this.row, this.layer, this.head), context = canvas.getContext("2d");
    canvas.width = n, canvas.height = this.nPlaces;
    const color = getComputedStyle(this.root).getPropertyValue("--v-model").trim(), image = context.createImageData(n, this.nPlaces);
    const pixels = new DataView(image.data.buffer), rgb = parseInt(color.slice(1), 16) * 256;
    for (let place = 0; place < this.nPlaces; place++) for (let to = 0; to < n; to++) {
      pixels.setUint32(4 * (place * n + to), rgb + whole[place * width + to]);
    }
    context.putImageData(image, 0, 0);
  }

  drawEffects() {
    const own = Float32Array.from({ length: this.nPlaces }, (_, place) => this.effect(this.layer, this.head, place));
    this.drawCurve(".effects", [["effect", own]]);
  }

  drawCurve(name, lines) {
    const most = Math.max(0.001, ...lines.flatMap(([, own]) => [...own])), least = Math.min(0, ...lines.flatMap(([, own]) => [...own]));
    const n = Math.max(1, this.nPlaces - 1), y = (value) => 100 * (most - value) / (most - least);
    const paths = lines.map(([kind, own], at) => `<path style="stroke:var(--v-${kind});stroke-width:${at || lines.length < 2 ? 2 : 5}" d="${[...own].map((value, place) =>
      `${place ? "L" : "M"}${(100 * place / n).toFixed(2)} ${y(value).toFixed(2)}`).join("")}"/>`).join("");
    const plot = this.part(name), scored = rows(this.scored, this.row);
    plot.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">${paths}</svg><div class="at"></div>`;
    plot.previousElementSibling.querySelector(".soft").textContent = `${number(least)} … ${number(most)} bits`;
    plot.nextElementSibling.innerHTML = `<span>position ${scored[0] + 1}</span><span>${scored[this.nPlaces - 1] + 1}</span>`;
  }

  say(attention) {
    const names = this.about.answers, texts = this.about.tokens[this.row];
    const best = (probs) => {  // with those that are nearly as probable: of a tie, one alone would look like a wrong answer
      const most = Math.max(...probs), near = [...probs.keys()].filter((at) => probs[at] > 0.9 * most).sort((one, other) => probs[other] - probs[one]);
      const isTie = near.length > 1 && near.every((at) => number(probs[at]) === number(most)), more = near.length - 3;
      const listed = near.slice(0, 3).map((at) => (isTie ? shown(names[at]) : `${shown(names[at])} ${number(probs[at])}`));
      const last = more > 0 ? `${more} more` : listed.pop();
      return (listed.length ? `${listed.join(", ")} and ` : "") + last + (isTie ? ` ${number(most)} each` : "");
    };
    const get = (own) => rows(own, this.row, this.place), bitsHere = (own) => number(entry(own, this.row, this.place));
    const step = this.steps.length > 1 ? `Step ${this.steps[this.step].toLocaleString("en")}, sequence` : "Sequence";
    const parts = [`${step} ${this.sequence + 1}, position ${this.token + 1} (${shown(texts[this.token])}): exact ${best(get(this.exact_probs))}, ` +
      `entropy ${bitsHere(this.exact_entropy_bits)} bits; model ${best(get(this.model_probs))}, entropy ${bitsHere(this.model_entropy_bits)} bits; KL ${bitsHere(this.kl_bits)} bits.`];
    if (attention) {
      const at = attention.indexOf(Math.max(...attention));
      const lost = this.hasEffects ? `; ${effectText(this.effect(this.layer, this.head))}` : "";
      parts.push(`Layer ${this.layer} head ${this.head} attends most to ${shown(texts[at] || "")} at ${at + 1} (${share(attention[at] / 255)})${lost}.`);
    }
    const without = this.without();
    if (without) parts.push(without.probs ? `Without ${without.name}: ${best(without.probs)}, KL ${number(without.bits)} bits.` : `Without ${without.name}: the model runs …`);
    this.part(".said").textContent = parts.join(" ");
  }
}

// ---- notebooks

/** Draw the widget of `diagnosis.view()`; its model runs where Python has it. */
function render({ model, el }) {
  const waiting = new Map();
  let last = 0;
  const ask = (request) => new Promise((resolve) => {
    waiting.set(++last, resolve);
    model.send({ id: last, ...request });
  });
  const receive = (message, buffers) => {
    const resolve = waiting.get(message.id);
    waiting.delete(message.id);
    if (!resolve) return;
    const part = (at) => ({ shape: message.shapes[at], values: new Float32Array(buffers[at].buffer.slice(buffers[at].byteOffset, buffers[at].byteOffset + buffers[at].byteLength)) });
    resolve({ probs: part(0), kl_bits: part(1) });
  };
  model.on("msg:custom", receive);
  mount(el, model.get("data"), model.get("runs") ? ask : null);
  return () => model.off("msg:custom", receive);
}

export default { render };
