// A live page: a small transformer and the exact posterior of its task, computed here while the reader edits the evidence.
// One ES module without a framework. `mount(host)` reads its style from a template element inside `host`, and the
// data from a script element: a gzip of a safetensors file with the weights in float16, as base64; its metadata holds the
// task. It draws into a shadow root, so that styles of the surrounding page do not reach it, except `color-scheme`.

// ---- data

const half = (bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
};

/** Return the weights of a compressed safetensors file by name, as float32, and what its metadata says of the task. */
export async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const buffer = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: texts, ...listed } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const weights = {};
  for (const [name, { data_offsets: [from, to] }] of Object.entries(listed)) {
    weights[name] = Float32Array.from(new Uint16Array(buffer.slice(start + from, start + to)), half);
  }
  return { weights, about: JSON.parse(texts.about) };
}

// ---- the network

/** out[row] = W x[row] + b for rows `from` to `to`, four at a time; W is stored by output, as torch does. */
function linear(x, W, b, out, from, to, nIn, nOut) {
  for (let row = from; row < to; row += 4) {
    const r0 = row, r1 = Math.min(row + 1, to - 1), r2 = Math.min(row + 2, to - 1), r3 = Math.min(row + 3, to - 1);  // the last may repeat
    const a0 = r0 * nIn, a1 = r1 * nIn, a2 = r2 * nIn, a3 = r3 * nIn;
    for (let o = 0, w = 0; o < nOut; o++, w += nIn) {
      let s0 = b ? b[o] : 0, s1 = s0, s2 = s0, s3 = s0;
      for (let i = 0; i < nIn; i++) {
        const weight = W[w + i];
        s0 += weight * x[a0 + i]; s1 += weight * x[a1 + i]; s2 += weight * x[a2 + i]; s3 += weight * x[a3 + i];
      }
      out[r0 * nOut + o] = s0; out[r1 * nOut + o] = s1; out[r2 * nOut + o] = s2; out[r3 * nOut + o] = s3;
    }
  }
}

/** The exact GELU, with the error function of Abramowitz & Stegun 7.1.26: wrong by at most 1.5e-7. */
function gelu(x) {
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * z);
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * Math.exp(-z * z);
  return x * (x < 0 ? tail : 2 - tail) / 2;
}

export function softmax(logits) {
  const most = Math.max(...logits), weights = Array.from(logits, (own) => Math.exp(own - most));
  const total = weights.reduce((sum, own) => sum + own, 0);
  return weights.map((own) => own / total);
}

/** The transformer of the package. `run(tokens, from)` computes positions `from` on; earlier ones are as they were. */
export class Network {
  constructor(weights, config, length) {
    Object.assign(this, { weights, length }, config);
    const room = (width) => new Float32Array(length * width);
    this.resid = Array.from({ length: this.layers + 1 }, () => room(this.width));
    this.keys = Array.from({ length: this.layers }, () => [room(this.width), room(this.width)]);
    this.pattern = Array.from({ length: this.layers }, () => room(this.heads * length));
    [this.x, this.q, this.z] = [0, 0, 0].map(() => room(this.width));
    this.hidden = room(this.mlp);
  }

  norm(x, name, out, from, to) {
    const w = this.weights[`${name}.w`], b = this.weights[`${name}.b`], n = this.width;
    for (let row = from; row < to; row++) {
      let mean = 0, square = 0;
      if (b) { for (let i = 0; i < n; i++) mean += x[row * n + i]; mean /= n; }
      for (let i = 0; i < n; i++) square += (x[row * n + i] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / n + 1e-5);
      for (let i = 0; i < n; i++) out[row * n + i] = (x[row * n + i] - mean) * scale * w[i] + (b ? b[i] : 0);
    }
  }

  rotate(x, from, to) {
    const size = this.width / this.heads, mid = size / 2;
    for (let row = from; row < to; row++) for (let i = 0; i < mid; i++) {
      const angle = row * 10000 ** (-2 * i / size), cos = Math.cos(angle), sin = Math.sin(angle);
      for (let at = row * this.width + i; at < (row + 1) * this.width; at += size) {
        const a = x[at], b = x[at + mid];
        x[at] = a * cos - b * sin;
        x[at + mid] = b * cos + a * sin;
      }
    }
  }

  run(tokens, from = 0) {
    const { weights, width, x, resid } = this, to = tokens.length, places = weights["pos_embed.weight"];
    for (let row = from; row < to; row++) for (let i = 0; i < width; i++) {
      resid[0][row * width + i] = weights["embed.weight"][tokens[row] * width + i] + (places ? places[row * width + i] : 0);
    }
    for (let layer = 0; layer < this.layers; layer++) {
      const name = `blocks.${layer}`, after = resid[layer + 1], own = (part) => weights[`${name}.${part}`];
      this.norm(resid[layer], `${name}.ln1`, x, from, to);
      this.attend(layer, own, from, to);
      linear(this.z, own("attn.W_O.weight"), null, after, from, to, width, width);
      for (let i = from * width; i < to * width; i++) after[i] += resid[layer][i];
      this.norm(after, `${name}.ln2`, x, from, to);
      linear(x, own("mlp.W_in.weight"), own("mlp.W_in.bias"), this.hidden, from, to, width, this.mlp);
      for (let i = from * this.mlp; i < to * this.mlp; i++) this.hidden[i] = gelu(this.hidden[i]);
      linear(this.hidden, own("mlp.W_out.weight"), own("mlp.W_out.bias"), x, from, to, this.mlp, width);
      for (let i = from * width; i < to * width; i++) after[i] += x[i];
    }
  }

  attend(layer, own, from, to) {
    const { x, q, z, width, heads, length } = this, [k, v] = this.keys[layer], size = width / heads, bias = this.weights.bias;
    for (const [part, out] of [["Q", q], ["K", k], ["V", v]]) linear(x, own(`attn.W_${part}.weight`), null, out, from, to, width, width);
    if (this.rotary) { this.rotate(q, from, to); this.rotate(k, from, to); }
    z.fill(0, from * width, to * width);
    for (let row = from; row < to; row++) for (let head = 0; head < heads; head++) {
      const at = head * size, pattern = this.pattern[layer].subarray((row * heads + head) * length, (row * heads + head + 1) * length);
      let most = -Infinity, total = 0;
      for (let key = 0; key <= row; key++) {
        let score = 0;
        for (let i = 0; i < size; i++) score += q[row * width + at + i] * k[key * width + at + i];
        score = score / Math.sqrt(size) + (bias ? bias[(layer * heads + head) * length + row - key] : 0);
        pattern[key] = score;
        most = Math.max(most, score);
      }
      for (let key = 0; key <= row; key++) total += pattern[key] = Math.exp(pattern[key] - most);
      for (let key = 0; key <= row; key++) {
        const share = pattern[key] /= total;
        for (let i = 0; i < size; i++) z[row * width + at + i] += share * v[key * width + at + i];
      }
    }
  }

  /** Return the probabilities of the answers that the final norm and the unembedding read after so many layers. */
  lens(stage, row, answers) {
    const { width, x, weights } = this, output = weights["unembed.weight"] ?? weights["embed.weight"];
    const stream = this.resid[stage].subarray(row * width, (row + 1) * width);
    this.norm(stream, "ln_final", x, 0, 1);
    return softmax(answers.map((id) => { let logit = 0; for (let i = 0; i < width; i++) logit += x[i] * output[id * width + i]; return logit; }));
  }

  attention(layer, head, row) {
    const start = (row * this.heads + head) * this.length;
    return this.pattern[layer].subarray(start, start + row + 1);
  }
}

// ---- the exact posterior

const times = (row, matrix) => matrix[0].map((_, j) => row.reduce((sum, own, i) => sum + own * matrix[i][j], 0));
const normalized = (row) => { const total = row.reduce((sum, own) => sum + own, 0); return total > 1e-9 ? row.map((own) => own / total) : null; };

/** A hidden Markov model: beliefs follow b ← b T(symbol), and the answers are linear in the belief. */
class Chain {
  constructor(about, sequence) {
    Object.assign(this, about.filter[about.filter.length > 1 ? sequence : 0], { shows: about.shows, about });
  }

  choices() { return this.first.map((_, symbol) => symbol + this.about.symbols); }

  /** Change one piece of evidence in place, and return the first position that changed. */
  edit(tokens, place, id) { tokens[place] = id; return place; }

  beliefs(tokens) {
    let belief = null;
    return this.about.scored.map((place, step) => {
      const symbol = tokens[place] - this.about.symbols;
      if (step === 0) belief = normalized(this.first[symbol]);
      else if (belief) belief = normalized(times(belief, this.labeled[symbol]));
      return belief;
    });
  }

  posteriors(tokens) { return this.beliefs(tokens).map((belief) => belief && times(belief, this.shows)); }

  /** Return the beliefs that sequences of a few symbols reach. */
  reached(most = 3000) {
    const all = [];
    let last = this.first.map(normalized).filter(Boolean);
    while (last.length && all.length + last.length <= most) {
      all.push(...last);
      last = last.flatMap((belief) => this.labeled.map((matrix) => normalized(times(belief, matrix))).filter(Boolean));
    }
    return all;
  }
}

/** A bijection: an unseen key has one of the values that no key before it had. Edits keep the map one-to-one. */
class Bijection {
  constructor(about, _, tokens) {
    this.about = about;
    const free = Array.from({ length: about.values }, (_, value) => value + about.values);
    this.map = Array(about.values).fill(null);
    for (let at = 0; at + 1 < tokens.length; at += 2) this.map[tokens[at]] = tokens[at + 1];
    const left = free.filter((value) => !this.map.includes(value));
    this.map = this.map.map((value) => value ?? left.shift());
  }

  choices(place) { return Array.from({ length: this.about.values }, (_, at) => at + (place % 2) * this.about.values); }

  edit(tokens, place, id) {
    const old = tokens[place], before = [...tokens];
    if (place % 2) {
      const key = tokens[place - 1], other = this.map.indexOf(id);
      [this.map[key], this.map[other]] = [id, this.map[key]];
    } else {
      const other = this.about.repeats ? -1 : tokens.findIndex((own, at) => at % 2 === 0 && own === id);
      if (other >= 0) tokens[other] = old;
      tokens[place] = id;
    }
    for (let at = 1; at < tokens.length; at += 2) tokens[at] = this.map[tokens[at - 1]];
    return Math.max(0, before.findIndex((own, at) => own !== tokens[at]));
  }

  posteriors(tokens) {
    return this.about.scored.map((place) => {
      const pairs = Array.from({ length: place / 2 }, (_, at) => [tokens[2 * at], tokens[2 * at + 1]]);
      const known = pairs.find(([key]) => key === tokens[place]);
      return normalized(this.about.answers.map((id) => Number(known ? known[1] === id : !pairs.some((pair) => pair[1] === id))));
    });
  }
}

export const klBits = (exact, model) => Math.max(0, exact.reduce((sum, p, i) => sum + (p > 0 ? p * Math.log2(p / model[i]) : 0), 0));

/** What the page shows, without the page: tokens to edit, and all numbers at a scored position. */
export class Live {
  constructor({ weights, about }) {
    this.about = about;
    this.network = new Network(weights, about.network, about.sequences[0].length);
    this.open(0);
  }

  open(sequence) {
    this.sequence = sequence;
    this.tokens = [...this.about.sequences[sequence]];
    this.task = new (this.about.values ? Bijection : Chain)(this.about, sequence, this.tokens);
    this.compute(0);
  }

  edit(place, id) { this.compute(this.task.edit(this.tokens, place, id)); }

  compute(from) {
    this.network.run(this.tokens, from);
    this.posteriors = this.task.posteriors(this.tokens);
  }

  /** Return the exact posterior, what each stage reads (the embedding first), and attention, at a scored position. */
  at(step) {
    const { network, about } = this, row = about.scored[step], exact = this.posteriors[step], every = [...Array(network.layers).keys()];
    const lens = [0, ...every.map((layer) => layer + 1)].map((stage) => network.lens(stage, row, about.answers));
    const attention = every.map((layer) => [...Array(network.heads).keys()].map((head) => Array.from(network.attention(layer, head, row))));
    return { exact, lens, model: lens.at(-1), attention, kl: lens.map((own) => exact ? klBits(exact, own) : NaN) };
  }
}

// ---- the page

const number = (value) => !Number.isFinite(value) ? "–" : value === 0 ? "0" : value < 1e-4 ? "<0.0001" : value < 0.0995 ? String(Number(value.toPrecision(2))) : value.toPrecision(3);
const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
const ASKS = { process: "the next symbol", hmm: "the hidden state", bijection: "the value of the last key" };
const TRAIL = 8;  // beliefs that are joined by a line
const CORNERS = [[100, 8], [12, 160], [188, 160]];
const point = (belief) => [0, 1].map((axis) => CORNERS.reduce((sum, corner, i) => sum + corner[axis] * belief[i], 0).toFixed(2));

export async function mount(host) {
  const live = new Live(await unpacked(host.querySelector("script").textContent)), { about, network } = live;
  const label = (id) => escaped(about.labels[id]), root = host.attachShadow({ mode: "open" });
  const isButton = about.symbols !== undefined && live.task.choices(0).length <= 5, unit = about.values ? "token" : "symbol";
  const isHued = isButton && about.task === "process";
  const header = about.task === "hmm" ? about.scored[0] - 1 : 0, state = (i) => about.task === "hmm" ? label(about.answers[i]) : `state ${i}`;
  let step = about.scored.length - 1, cloud = "", spent = 0;
  root.append(host.querySelector("template").content.cloneNode(true));
  root.innerHTML += `<section class="live" aria-label="Live model ${escaped(about.name)}">
    <div class="row"><h2 id="evidence">Evidence</h2><button class="plain another">Another sequence</button></div>
    <p class="soft hint">${isButton ? "Click a symbol to change it" : "Choose other tokens"}${header ? `; ${header} tokens before it state its probabilities` : ""}.</p>
    <div class="tokens${isButton ? "" : " wide"}" role="group" aria-labelledby="evidence"></div>
    <label class="slide"><span>Read after ${unit}</span> <input type="range" min="1" max="${about.scored.length}" value="${step + 1}"> <output></output></label>
    <div class="kl"></div><p class="quiet" role="status"></p><div class="grid"></div>
    <p class="soft foot">Network (${about.parameters.toLocaleString("en")} weights, float16) and exact posterior are computed in this page<span class="time"></span>.
    ${isButton ? "Keys in the row: ← → go to another symbol, ↑ ↓ change it." : "Keys in the row: ← → go to another token, ↑ ↓ choose."}</p></section>`;
  const find = (selector) => root.querySelector(selector), row = find(".tokens"), slider = find("input");

  function change(place, id) {
    const begun = performance.now();
    live.edit(place, id);
    draw(begun);
  }

  function tiles() {
    const at = Math.max(0, [...row.children].findIndex((tile) => tile.firstChild.tabIndex === 0));
    row.innerHTML = about.places.map((place, i) => `<span class="tile">${isButton ? "<button></button>" : `<select>${
      live.task.choices(place).map((id) => `<option value="${id}">${label(id)}</option>`).join("")}</select>`}<small>${i + 1}</small></span>`).join("");
    [...row.children].forEach((tile, i) => {
      const control = tile.firstChild, place = about.places[i];
      control.tabIndex = i === at ? 0 : -1;
      const turn = (by) => {
        const ids = live.task.choices(place), now = ids.indexOf(live.tokens[place]);
        change(place, ids[(now + by + ids.length) % ids.length]);
      };
      if (isButton) control.addEventListener("click", () => turn(1));
      else control.addEventListener("change", () => change(place, Number(control.value)));
      control.addEventListener("focus", () => { for (const other of row.children) other.firstChild.tabIndex = other === tile ? 0 : -1; });
      control.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 }[event.key];
        if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        if (event.key === "ArrowLeft" || event.key === "ArrowRight") row.children[i + by]?.firstChild.focus();
        else turn(by);
      });
    });
    cloud = about.implied ? live.task.reached().map(point).map(([x, y]) => `M${x} ${y}h0`).join("") : "";
  }

  function simplex(numbers) {
    if (!about.implied || !numbers.exact) return "";
    const beliefs = live.task.beliefs(live.tokens).slice(0, step + 1), exact = point(beliefs.at(-1)), model = point(times(numbers.model, about.implied));
    const trail = beliefs.slice(-TRAIL).map((own, i, last) => i ? `<path class="trail" opacity="${(i / last.length).toFixed(2)}" d="M${point(last[i - 1]).join(" ")}L${point(own).join(" ")}"/>` : "").join("");
    const names = [[100, 2, "middle"], [4, 172, "start"], [196, 172, "end"]].map(([x, y, anchor], i) =>
      `<text x="${x}" y="${y}" text-anchor="${anchor}" fill="var(${isHued ? `--hue${i}` : "--text"})">${state(i)}</text>`);
    return `<div><h2>Belief about the hidden state</h2><div class="legend"><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="ring" cx="6" cy="6" r="4.5"/></svg>exact</span>
      <span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="dot" cx="6" cy="6" r="4"/></svg>what the network's prediction implies</span></div>
      <svg class="simplex" viewBox="0 -8 200 184" role="img" aria-label="Triangle of beliefs: exact ${beliefs.at(-1).map((p, i) => `${state(i)} ${number(p)}`).join(", ")}">
      <path class="edge" d="M${CORNERS.map((corner) => corner.join(" ")).join("L")}Z"/><path class="cloud" d="${cloud}"/>${trail}${names.join("")}
      <circle class="dot" r="3.6" cx="${model[0]}" cy="${model[1]}"/><circle class="ring" r="6.4" cx="${exact[0]}" cy="${exact[1]}"/></svg>
      <p class="soft">A corner is certainty. Gray dots: beliefs that other evidence reaches; line: the last steps.</p></div>`;
  }

  /** Return the probability of a full bar and of the darkest cell. */
  const full = ({ exact, model }) => [0.25, 0.5].find((most) => Math.max(...model, ...(exact ?? [])) <= most) ?? 1;

  function bars({ exact, model }, most) {
    const one = (kind, p) => `<div class="track"><i class="${kind}" style="width: ${100 * p / most}%"></i></div><span>${p.toFixed(3)}</span>`;
    return `<div><h2>Prediction <span class="soft">${ASKS[about.task]}</span></h2>
      <div class="legend"><span><i class="exact"></i>exact</span><span><i class="model"></i>network</span><span>full bar: ${most}</span></div>
      <div class="answers${about.answers.length <= 8 ? " few" : ""}" style="--letters: ${Math.max(...about.answers.map((id) => about.labels[id].length))}">${about.answers.map((id, i) =>
        `<div class="answer"><b>${label(id)}</b>${one("exact", exact ? exact[i] : 0)}${one("model", model[i])}</div>`).join("")}</div></div>`;
  }

  function layers({ exact, lens, kl }, most) {
    const n = about.answers.length, hasText = n <= 8, stages = [...lens.keys()].reverse();
    const cells = (probs) => about.answers.map((_, i) => `<span class="cell" style="--p: ${Math.min(100, 100 * (probs?.[i] ?? 0) / most).toFixed(1)}">${hasText && probs ? probs[i].toFixed(2) : ""}</span>`).join("");
    const name = (stage) => stage === 0 ? "embedding" : `layer ${stage - 1}`;
    return `<div><h2>What each layer would answer <span class="soft">logit lens</span></h2>
      <div class="heat${hasText ? "" : " many"}" style="grid-template-columns: max-content repeat(${n}, minmax(0, 1fr)) max-content">
      <span></span>${about.answers.map((id) => `<span class="top">${hasText ? label(id) : ""}</span>`).join("")}<span class="bits">KL, bits</span>
      <span class="name here">exact</span>${cells(exact)}<span></span>
      ${stages.map((stage) => `<span class="name">${name(stage)}</span>${cells(lens[stage])}<span class="bits">${number(kl[stage])}</span>`).join("")}</div>
      <p class="soft new">probability 0<span class="scale"></span>${most}${most < 1 ? " or more" : ""}${hasText ? "" : `; from ${label(about.answers[0])} on the left to ${label(about.answers.at(-1))}`}</p></div>`;
  }

  function heads({ attention }) {
    const place = about.scored[step], n = network.length, isDense = network.layers * network.heads > 24;
    const strip = (weights) => `linear-gradient(90deg, ${Array.from({ length: n }, (_, key) =>
      `color-mix(in srgb, var(--model) ${(100 * (weights[key] ?? 0)).toFixed(1)}%, var(--cell)) ${(100 * key / n).toFixed(2)}% ${(100 * (key + 1) / n).toFixed(2)}%`).join(", ")})`;
    const rows = [...attention.keys()].reverse().flatMap((layer) => attention[layer].map((weights, head) => {
      const most = Math.max(...weights), said = `${most.toFixed(2)} on ${unit === "token" || !header ? weights.indexOf(most) + 1 : `token ${weights.indexOf(most) + 1}`}`;
      return `<span class="name">L${layer} H${head}</span><div class="strip" role="img" aria-label="layer ${layer} head ${head}: most is ${said}" title="${said}" style="background-image: ${strip(weights)}"></div>${
        isDense ? "" : `<span class="bits">${said}</span>`}`;
    }));
    return `<div class="whole"><h2>Attention by head <span class="soft">from ${header ? "token" : unit} ${place + 1}, the one read</span></h2>
      <div class="heat attention${isDense ? " dense" : ""}"><span></span><div class="ends soft"><span>1</span><span>${n}</span></div>${isDense ? "" : '<span class="bits">most on</span>'}${rows.join("")}</div>
      <p class="soft new">weight 0<span class="scale dark"></span>1</p></div>`;
  }

  function draw(begun = performance.now()) {
    const numbers = live.at(step), { exact, model, kl } = numbers, here = about.scored[step];
    [...row.children].forEach((tile, i) => {
      const place = about.places[i], id = live.tokens[place], control = tile.firstChild;
      if (isButton) control.innerHTML = label(id); else control.value = id;
      control.setAttribute("aria-label", `${unit} ${i + 1}${isButton ? `: ${about.labels[id]}` : ""}`);
      tile.classList.toggle("later", place > here);
      tile.classList.toggle("read", place === here);
      if (isHued) tile.style.setProperty("--hue", `var(--hue${id - about.symbols})`);
    });
    slider.value = step + 1;
    find("output").textContent = `${about.places.indexOf(here) + 1} of ${about.places.length}`;
    const uniform = exact && klBits(exact, exact.map(() => 1 / exact.length)), best = exact && exact.indexOf(Math.max(...exact));
    find(".kl").innerHTML = exact ? `<b>${number(kl.at(-1))} bits</b><span>lost by the network's prediction against the exact posterior, KL(exact ‖ network). A uniform guess loses ${number(uniform)} bits.</span>`
      : `<b>impossible</b><span>The task never shows these symbols in this order, so no posterior exists here. Change one of them, or read earlier.</span>`;
    find(".grid").innerHTML = `${simplex(numbers)}<div class="column">${bars(numbers, full(numbers))}${layers(numbers, full(numbers))}</div>${heads(numbers)}`;
    spent = performance.now() - begun;
    find(".time").textContent = `; the last change took ${spent < 1 ? "under 1" : spent.toFixed(0)} ms`;
    find("[role=status]").textContent = exact ? `${number(kl.at(-1))} bits lost. ${about.labels[about.answers[best]]}: exact ${exact[best].toFixed(2)}, network ${model[best].toFixed(2)}.` : "Impossible evidence.";
  }

  slider.addEventListener("input", () => { step = slider.value - 1; draw(); });
  find(".another").addEventListener("click", () => {
    const begun = performance.now();
    live.open((live.sequence + 1) % about.sequences.length);
    tiles();
    draw(begun);
  });
  tiles();
  draw();
  return { live, root, spent: () => spent };
}
