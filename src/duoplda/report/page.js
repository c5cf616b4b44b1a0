"use strict";
// Draws the curves and answers the sliders. Every number comes from the JSON in #report-data, which duoplda/report/_data.py
// describes; every text is set with textContent, so that no name can become markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const byId = (id) => document.getElementById(id);
  const sums = (steps) => { let sum = 0; return steps.map((step) => (sum += step)); };
  for (const system of data.systems) {
    for (const list of [system.actual, system.hull].filter(Boolean)) { list.miss = sums(list.miss); list.fa = sums(list.fa); }
    system.det = system.det.map(sums);
    if (system.calibrated) system.tippett = system.tippett.map((curve) => curve.map(sums));
  }
  // Scores that are not calibrated are not ratios: there are no decisions by the Bayes threshold and no curves over ratios.
  const someRatios = data.systems.some(({ calibrated }) => calibrated);
  const decisionsOf = (system) => (system.calibrated ? ["least", "actual"] : ["least"]);

  // -- decisions: the same floating-point operations as in Python, so that the ratios are the same numbers

  const { grid } = data;
  const costRatio = (p, miss, fa) => ((1 - p) / p) * (fa / miss);
  const all = grid.prior.flatMap((p) => grid.miss.flatMap((miss) => grid.fa.map((fa) => costRatio(p, miss, fa))));
  const place = new Map([...new Set(all)].sort((a, b) => a - b).map((ratio, index) => [ratio, index]));

  function decide(system, { prior, miss, fa }) {
    const ratio = costRatio(prior, miss, fa);
    const weigh = (list, k, threshold) => {
      const rates = { miss: list.miss[k] / data.targets, fa: list.fa[k] / data.nontargets };
      const cost = prior * miss * rates.miss + (1 - prior) * fa * rates.fa;
      const dcf = cost / Math.min(prior * miss, (1 - prior) * fa);
      return { threshold, dcf, cost, misses: list.miss[k], alarms: list.fa[k], rates };
    };
    const corners = system.hull.miss.map((_, k) => weigh(system.hull, k, Number(system.hull.at[k])));
    const least = corners.reduce((best, corner) => (corner.cost < best.cost ? corner : best));
    return { actual: system.calibrated && weigh(system.actual, place.get(ratio), Math.log(ratio)), least };
  }

  // Acklam's approximation of the inverse normal distribution, good to 1e-9: for markers only
  function probit(p) {
    if (p <= 0 || p >= 1) return p <= 0 ? -9 : 9;
    const poly = (x, ...c) => c.reduce((sum, value) => sum * x + value, 0);
    if (p > 0.5) return -probit(1 - p);
    if (p < 0.02425) {
      const q = Math.sqrt(-2 * Math.log(p));
      return poly(q, -7.784894002430293e-3, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
        2.938163982698783) / poly(q, 7.784695709041462e-3, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1);
    }
    const q = p - 0.5, r = q * q;
    return (poly(r, -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716,
      2.506628277459239) * q) / poly(r, -54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972,
      -13.28068155288572, 1);
  }

  // -- drawing

  const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "5 2 5 5", "12 5", "1.5 4", "8 2 2 2 2 2"];
  const SHAPES = [
    "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0 -5 0Z", "M-4.5-4.5H4.5V4.5H-4.5Z", "M0-5.5L5.5 4.5H-5.5Z", "M0-6L6 0L0 6L-6 0Z",
    "M0 5.5L5.5-4.5H-5.5Z", "M-5.5 0L4.5-5.5V5.5Z", "M5.5 0L-4.5-5.5V5.5Z", "M-2-5.5H2V-2H5.5V2H2V5.5H-2V2H-5.5V-2H-2Z",
  ];
  const look = (index) => index % 8;

  function svg(tag, attributes, parent, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }
  function html(tag, attributes, parent, text) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function roundTicks([low, high], most) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
    const ticks = [];
    for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k++) ticks.push(k * step);
    return ticks.map((value) => [value, String(Number(value.toPrecision(6))).replace("-", "\u2212")]);
  }
  const RATES = [0.01, 0.1, 0.4, 1e-3, 1e-4, 1e-5, 1e-6, 0.05, 0.2, 0.02, 5e-3, 2e-3, 0.6, 0.8, 0.9, 0.95];
  function rateTicks([low, high], pixels, gap) {
    const kept = []; // the most important rates first, none too near another
    for (const rate of RATES) {
      const at = probit(rate), near = kept.some(([other]) => (Math.abs(at - other) / (high - low)) * pixels < gap);
      if (at >= low && at <= high && !near) kept.push([at, String(Number((100 * rate).toPrecision(4)))]);
    }
    return kept;
  }

  let clips = 0;
  // An empty chart: { plot, x, y } with the group to draw in and the maps from data to pixels.
  function frame(host, { label, x, y, xLabel, yLabel, shape = 0.68, xTicks, yTicks }) {
    host.querySelector("svg.plot")?.remove();
    const width = Math.max(260, Math.min(host.clientWidth || 520, 640)), height = Math.round(width * shape) + 32;
    const left = 52, top = 8, right = 12, bottom = 42, w = width - left - right, h = height - top - bottom;
    const root = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    host.insertBefore(root, host.querySelector("figcaption"));
    const map = { x: (v) => left + ((v - x[0]) / (x[1] - x[0])) * w, y: (v) => top + h - ((v - y[0]) / (y[1] - y[0])) * h };
    for (const [value, text] of xTicks ? xTicks(w) : roundTicks(x, w / 50)) {
      svg("line", { class: "grid", x1: map.x(value), x2: map.x(value), y1: top, y2: top + h }, root);
      svg("text", { x: map.x(value), y: top + h + 19, "text-anchor": "middle" }, root, text);
    }
    for (const [value, text] of yTicks ? yTicks(h) : roundTicks(y, h / 40)) {
      svg("line", { class: "grid", x1: left, x2: left + w, y1: map.y(value), y2: map.y(value) }, root);
      svg("text", { x: left - 6, y: map.y(value) + 4, "text-anchor": "end" }, root, text);
    }
    svg("text", { x: left + w / 2, y: height - 5, "text-anchor": "middle" }, root, xLabel);
    svg("text", { transform: `translate(12 ${top + h / 2}) rotate(-90)`, "text-anchor": "middle" }, root, yLabel);
    const clip = svg("clipPath", { id: `clip${++clips}` }, root);
    svg("rect", { x: left, y: top, width: w, height: h }, clip);
    const plot = svg("g", { "clip-path": `url(#clip${clips})` }, root);
    svg("rect", { class: "border", x: left, y: top, width: w, height: h }, root);
    const line = (points, attributes) => {
      const d = points.map(([a, b], k) => `${k ? "L" : "M"}${map.x(a).toFixed(1)} ${map.y(b).toFixed(1)}`).join("");
      return svg("path", { d, ...attributes }, plot);
    };
    const cursor = svg("line", { class: "cursor", y1: top, y2: top + h, visibility: "hidden" }, plot);
    const moveCursor = (value) => {
      const visible = value >= x[0] && value <= x[1];
      cursor.setAttribute("visibility", visible ? "visible" : "hidden");
      if (visible) { cursor.setAttribute("x1", map.x(value)); cursor.setAttribute("x2", map.x(value)); }
    };
    return { root, plot, map, line, moveCursor, x, y };
  }
  // The coordinates of thinned curves are whole numbers, of which data.units make a whole axis.
  const inUnits = ({ x, y }, [us, vs]) => us.map((u, k) => [
    x[0] + (u / data.units) * (x[1] - x[0]), y[0] + (vs[k] / data.units) * (y[1] - y[0]),
  ]);
  const strokes = (index, extra = "") => ({ class: `curve s${look(index)} ${extra}`, "stroke-dasharray": DASHES[look(index)] });

  function legend(host, entries) {
    const list = html("ul", { class: "legend" });
    for (const { text, draw } of entries) {
      const item = html("li", {}, list);
      draw(svg("svg", { width: 30, height: 14, "aria-hidden": "true" }, item));
      html("bdi", {}, item, text);
    }
    host.querySelector("h3").after(list);
  }
  const systemLegend = (host, shapes) => legend(host, data.systems.map(({ name, calibrated }, k) => ({
    text: calibrated ? name : `${name} (not calibrated)`,
    draw: (icon) => {
      svg("path", { d: "M0 7H30", ...strokes(k), ...(shapes === "only" && { "stroke-dasharray": "" }) }, icon);
      if (shapes) svg("path", { class: `f${look(k)}`, d: SHAPES[look(k)], transform: "translate(15 7) scale(0.8)" }, icon);
    },
  })));

  function drawDet(host) {
    const [x, y] = [data.det.x, data.det.y];
    const chart = frame(host, {
      label: "Detection error trade-off", x, y, xLabel: "False-alarm rate (%)", yLabel: "Miss rate (%)", shape: 0.86,
      xTicks: (pixels) => rateTicks(x, pixels, 34), yTicks: (pixels) => rateTicks(y, pixels, 20),
    });
    data.systems.forEach((system, k) => chart.line(inUnits(chart, system.det), strokes(k)));
    const marks = data.systems.map((system, k) => decisionsOf(system).map((kind) => {
      const mark = svg("path", { class: kind === "least" ? `open s${look(k)}` : `f${look(k)}`, d: SHAPES[look(k)] }, chart.root);
      mark.dataset.kind = kind;
      return [kind, mark, svg("title", {}, mark)];
    }));
    const inside = (value, [low, high]) => Math.min(Math.max(value, low), high);
    return (point, decisions) => decisions.forEach((decision, k) => marks[k].forEach(([kind, mark, title]) => {
      const { miss, fa } = decision[kind].rates;
      const at = [chart.map.x(inside(probit(fa), x)), chart.map.y(inside(probit(miss), y))];
      mark.setAttribute("transform", `translate(${at[0].toFixed(1)} ${at[1].toFixed(1)})`);
      title.textContent = `${data.systems[k].name}, ${kind}: ${percent(miss)} misses, ${percent(fa)} false alarms`;
    }));
  }

  function drawTippett(host) {
    const chart = frame(host, {
      label: "Tippett plot", x: data.tippett, y: [0, 1], xLabel: "log\u2081\u2080 LR", yLabel: "Share with at least this LR",
    });
    data.systems.forEach((system, k) => system.calibrated && system.tippett.forEach((curve, nontarget) =>
      chart.line(inUnits(chart, curve), strokes(k, nontarget ? "thin" : ""))));
    return ({ threshold }) => chart.moveCursor(threshold / Math.LN10);
  }

  function drawBayes(host) {
    const top = Math.min(1.5, Math.max(1.05, ...data.systems.flatMap(({ bayes }) => bayes.actual ?? [])));
    const chart = frame(host, {
      label: "Normalised Bayes error", x: [-data.bayes, data.bayes], y: [0, top],
      xLabel: "Prior log-odds (nats)", yLabel: "Normalised Bayes error",
    });
    chart.line([[-data.bayes, 1], [data.bayes, 1]], { class: "one" });
    overPriors(chart, "bayes");
    return ({ threshold }) => chart.moveCursor(-threshold);
  }
  // The curves of each system over evenly spaced priors: as it is, and at its least.
  function overPriors(chart, name) {
    data.systems.forEach((system, k) => ["actual", "least"].filter((kind) => system[name]?.[kind]).forEach((kind) => {
      const dashed = Number(kind === "least");
      const values = system[name][kind].map((v, i, list) => [data[name] * ((2 * i) / (list.length - 1) - 1), v]);
      chart.line(values, { class: `curve s${look(k)} ${dashed ? "thin" : ""}`, "stroke-dasharray": dashed ? "5 3" : "" });
      values.filter((_, i) => i % 20 === (4 * k + 10 * dashed) % 20).forEach(([a, b]) => svg("path", {
        class: dashed ? `open s${look(k)}` : `f${look(k)}`, d: SHAPES[look(k)],
        transform: `translate(${chart.map.x(a).toFixed(1)} ${chart.map.y(b).toFixed(1)}) scale(0.7)`,
      }, chart.plot));
    }));
  }

  function drawEce(host) {
    const top = Math.min(1.5, Math.max(1, ...data.systems.flatMap(({ ece }) => ece?.actual ?? [])));
    const chart = frame(host, {
      label: "Empirical cross-entropy", x: [-data.ece, data.ece], y: [0, 1.05 * top],
      xLabel: "log\u2081\u2080 prior odds", yLabel: "Empirical cross-entropy (bits)",
    });
    const entropy = (p) => -(p * Math.log2(p) + (1 - p) * Math.log2(1 - p));
    const orders = Array.from({ length: 121 }, (_, k) => data.ece * (k / 60 - 1));
    chart.line(orders.map((order) => [order, entropy(1 / (1 + 10 ** -order))]), { class: "curve without" });
    overPriors(chart, "ece");
    return () => {};
  }

  function drawHistogram(host, system) {
    const { span, targets, nontargets } = system.histogram, step = (span[1] - span[0]) / targets.length;
    const chart = frame(host, {
      label: `Scores of ${system.name}`, x: span, y: [0, 1.05 * Math.max(...targets, ...nontargets)],
      xLabel: system.calibrated ? "LLR (nats)" : "Score", yLabel: "Share per bin", shape: 0.5,
    });
    [[nontargets, 1], [targets, 0]].forEach(([shares, color]) => {
      const tops = shares.flatMap((v, k) => [[span[0] + k * step, v], [span[0] + (k + 1) * step, v]]);
      chart.line([[span[0], 0], ...tops, [span[1], 0]], { class: `bars s${color} f${color}`, "stroke-dasharray": DASHES[color] });
    });
    return ({ threshold }) => system.calibrated && chart.moveCursor(threshold);
  }

  function drawShares(host) {
    const n = data.shares[0].length;
    const chart = frame(host, {
      label: "Variance shares", x: [0.5, n + 0.5], y: [0, 1], xLabel: "Direction, by share of the speaker",
      yLabel: "Share of the variance", xTicks: (pixels) => roundTicks([0, n], pixels / 60).filter(([v]) => v >= 1 && v % 1 === 0),
    });
    let below = Array(n).fill(0);
    data.shares.forEach((shares, level) => {
      const above = below.map((v, k) => Math.min(1, v + shares[k]));
      const edge = (values) => values.flatMap((v, k) => [[k + 0.5, v], [k + 1.5, v]]);
      const path = chart.line([...edge(above), ...edge(below).reverse()], { class: `a${level}` });
      if (level === 1) hatched(path, chart.plot);
      below = above;
    });
  }
  function hatched(shape, parent) {
    const id = `hatch${++clips}`, size = { width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
    svg("line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 7 }, svg("pattern", { id, ...size }, parent));
    const copy = shape.cloneNode();
    copy.setAttribute("class", "");
    copy.setAttribute("fill", `url(#${id})`);
    parent.append(copy);
  }

  // -- the table of decisions

  const percent = (rate) => `${(100 * rate).toFixed(rate > 0 && rate < 0.001 ? 4 : 2)} %`;
  const signed = (v) => (Number.isFinite(v) ? v.toFixed(2) : v > 0 ? "\u221e" : "-\u221e").replace("-", "\u2212");
  const FORMS = { threshold: signed, dcf: (v) => v.toFixed(4), cost: (v) => v.toPrecision(3) };
  const COLUMNS = ["threshold", "dcf", "cost", "misses", "alarms"];
  const cells = data.systems.map((system, k) => {
    const { name, calibrated } = system;
    const body = byId("decisions").tBodies[0];
    const head = html("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, html("tr", { class: "group" }, body));
    html("bdi", {}, head, name);
    if (!calibrated) head.append(" ", html("span", { class: "badge bad" }, null, "! not calibrated"));
    return Object.fromEntries(decisionsOf(system).reverse().map((kind) => {
      const row = html("tr", {}, body);
      html("td", { class: "text" }, row, kind === "actual" ? "Bayes" : "least cost");
      return [kind, COLUMNS.map((key) => html("td", { "data-system": k, "data-kind": kind, "data-key": key }, row))];
    }));
  });
  function fill(decision, row) {
    COLUMNS.forEach((key, column) => {
      const cell = row[column], rate = { misses: decision.rates.miss, alarms: decision.rates.fa }[key];
      cell.dataset.value = decision[key];
      cell.textContent = rate === undefined ? FORMS[key](decision[key]) : percent(rate);
      if (rate !== undefined) html("span", { class: "interval" }, cell, decision[key].toLocaleString("en"));
    });
  }

  // -- sliders

  const sliders = ["prior", "miss", "fa"].map((key, k) => {
    const input = byId(`slider-${key}`);
    input.max = grid[key].length - 1;
    input.value = grid.start[k];
    input.addEventListener("input", update);
    return [key, input, byId(`value-${key}`)];
  });
  byId("reset").addEventListener("click", () => {
    sliders.forEach(([, input], k) => { input.value = grid.start[k]; });
    update();
  });

  let movers = [];
  function update() {
    const point = {};
    for (const [key, input, output] of sliders) {
      point[key] = grid[key][Number(input.value)];
      output.textContent = String(point[key]);
      input.setAttribute("aria-valuetext", String(point[key]));
    }
    const ratio = costRatio(point.prior, point.miss, point.fa);
    point.threshold = Math.log(ratio);
    const rule = `Accept when LLR \u2265 ${signed(point.threshold)} (LR \u2265 ${Number(ratio.toPrecision(4))}).`;
    byId("threshold").textContent = someRatios ? rule : "No system is calibrated: there is no Bayes threshold.";
    const decisions = data.systems.map((system) => decide(system, point));
    decisions.forEach((decision, k) => Object.keys(cells[k]).forEach((kind) => fill(decision[kind], cells[k][kind])));
    movers.forEach((move) => move(point, decisions));
  }

  // -- all together

  const charts = [[byId("det"), drawDet], [byId("bayes"), drawBayes]];
  systemLegend(byId("det"), true);
  systemLegend(byId("bayes"), "only");
  if (someRatios) {
    charts.push([byId("tippett"), drawTippett], [byId("ece"), drawEce]);
    systemLegend(byId("tippett"), false);
    systemLegend(byId("ece"), "only");
  } else {
    byId("tippett").hidden = true;
    byId("ece").hidden = true;
  }
  const swatch = (color) => (icon) => svg("rect", { class: `a${color}`, x: 8, y: 1, width: 14, height: 12 }, icon);
  data.systems.forEach((system) => {
    const host = html("figure", { class: "chart" }, byId("histograms"));
    html("bdi", {}, html("h3", {}, host), system.name);
    legend(host, [["target", 0], ["non-target", 1]].map(([text, color]) => ({
      text,
      draw: (icon) => svg("path", { class: `bars s${color} f${color}`, d: "M6 13V3H24V13", "stroke-dasharray": DASHES[color] }, icon),
    })));
    charts.push([host, (figure) => drawHistogram(figure, system)]);
  });
  if (data.shares) {
    legend(byId("shares"), [["speaker", 0], ["session (hatched)", 1], ["channel", 2]].map(([text, color]) => ({ text, draw: swatch(color) })));
    charts.push([byId("shares"), drawShares]);
  }
  let drawnAt = 0;
  function draw() {
    if (drawnAt === document.documentElement.clientWidth) return;
    drawnAt = document.documentElement.clientWidth;
    movers = charts.map(([host, drawIn]) => drawIn(host)).filter(Boolean);
    update();
  }
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 100); });
  draw();
})();
